// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs of tasks with what each touches in memory, generated or recorded.

use serde::{Deserialize, Serialize};

/// What an access is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Instructions.
    Fetch,
    /// Data read.
    Load,
    /// Data written.
    Store,
}

/// A block of memory that a task goes through: `rows` rows of `bytes` bytes, each
/// `stride` bytes after the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// What for.
    pub kind: Kind,
    /// Where the first row begins. Of private memory: from where the core's begins.
    pub address: u64,
    /// Bytes of a row.
    pub bytes: u32,
    /// Rows.
    #[serde(default = "one")]
    pub rows: u32,
    /// Bytes from the beginning of a row to that of the next.
    #[serde(default)]
    pub stride: u32,
    /// Each core has such memory of its own (a stack, tables that it has copied).
    #[serde(default)]
    pub private: bool,
    /// Cycles of work that come with it, without any wait for memory.
    #[serde(default)]
    pub cycles: u32,
}

fn one() -> u32 {
    1
}

impl Access {
    /// A block of one row in shared memory, without work.
    pub fn row(kind: Kind, address: u64, bytes: u32) -> Self {
        Self {
            kind,
            address,
            bytes,
            rows: 1,
            stride: 0,
            private: false,
            cycles: 0,
        }
    }

    /// Behind its last byte.
    pub fn end(&self) -> u64 {
        let rows = u64::from(self.rows.saturating_sub(1)) * u64::from(self.stride);
        let span = rows.saturating_add(u64::from(self.bytes));
        self.address.saturating_add(span)
    }
}

/// A task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// Its temporal group; 0: none.
    #[serde(default)]
    pub t: u32,
    /// Its spatial group; 0: none.
    #[serde(default)]
    pub s: u32,
    /// The tasks that it waits for, by their places in the graph.
    #[serde(default)]
    pub after: Vec<u32>,
    /// Cycles of work at its beginning.
    #[serde(default)]
    pub cycles: u32,
    /// What it touches, in that order.
    #[serde(default)]
    pub accesses: Vec<Access>,
}

/// Tasks, and who waits for whom.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskGraph {
    /// All of them; the order means nothing but which is older at the beginning.
    pub tasks: Vec<TaskSpec>,
}

/// A graph that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// Not the JSON of a graph.
    #[error("reading a recorded graph: {0}")]
    Json(#[from] serde_json::Error),
    /// A task waits for one that is not there.
    #[error("task {task} waits for task {after}, and there are {count}")]
    Missing {
        /// Which.
        task: usize,
        /// For whom.
        after: u32,
        /// Tasks there are.
        count: usize,
    },
    /// Tasks wait for one another in a circle.
    #[error("{count} tasks never become ready, task {first} among them: they wait in a circle")]
    Circle {
        /// How many.
        count: usize,
        /// The first.
        first: usize,
    },
    /// An access beyond the memory that is modelled.
    #[error(
        "task {task} touches addresses up to {end:#x}, more than {limit:#x} bytes are modelled"
    )]
    Address {
        /// Which.
        task: usize,
        /// Up to there.
        end: u64,
        /// What is modelled.
        limit: u64,
    },
}

/// Modelled memory, shared and private each.
pub const MEMORY_BYTES: u64 = 1 << 30;
/// What compacting keeps together: all bits that choose a set of a cache with ways
/// of at most that size stay as they are.
pub const SEGMENT_BYTES: u64 = 128 << 10;

impl TaskGraph {
    /// A recorded graph, its addresses compacted.
    ///
    /// # Errors
    /// Where it is no graph, or a single access spans more than is modelled.
    pub fn from_json(text: &str) -> Result<Self, GraphError> {
        let mut graph: Self = serde_json::from_str(text)?;
        for (task, spec) in graph.tasks.iter().enumerate() {
            for access in &spec.accesses {
                let limit = MEMORY_BYTES;
                let end = access.end();
                if end - access.address > limit {
                    return Err(GraphError::Address { task, end, limit });
                }
            }
        }
        graph.compact();
        Ok(graph)
    }

    /// Moves the segments that shared accesses fall into next to one another, in
    /// the order of their addresses, so that recorded addresses from anywhere in 64
    /// bits fit the modelled memory. Which set of a cache an address falls into
    /// stays the same, as long as a way has no more than [`SEGMENT_BYTES`].
    fn compact(&mut self) {
        let shared = |access: &&mut Access| !access.private;
        let all = self.tasks.iter_mut().flat_map(|task| &mut task.accesses);
        let mut segments: Vec<u64> = Vec::new();
        for access in all.filter(shared) {
            let last = access.end().saturating_sub(1).max(access.address);
            segments.extend(access.address / SEGMENT_BYTES..=last / SEGMENT_BYTES);
            if segments.len() > 1 << 16 {
                segments.sort_unstable();
                segments.dedup();
            }
        }
        segments.sort_unstable();
        segments.dedup();
        let all = self.tasks.iter_mut().flat_map(|task| &mut task.accesses);
        for access in all.filter(shared) {
            let segment = access.address / SEGMENT_BYTES;
            let place = segments.partition_point(|&other| other < segment) as u64;
            access.address = place * SEGMENT_BYTES + access.address % SEGMENT_BYTES;
        }
    }

    /// Bytes of shared memory, and of private memory a core.
    ///
    /// # Errors
    /// Where an access lies beyond [`MEMORY_BYTES`].
    pub fn extent(&self) -> Result<(u64, u64), GraphError> {
        let (mut shared, mut private) = (0, 0);
        for (task, spec) in self.tasks.iter().enumerate() {
            for access in &spec.accesses {
                let end = access.end();
                if end > MEMORY_BYTES {
                    let limit = MEMORY_BYTES;
                    return Err(GraphError::Address { task, end, limit });
                }
                let most = match access.private {
                    true => &mut private,
                    false => &mut shared,
                };
                *most = end.max(*most);
            }
        }
        Ok((shared, private))
    }
}

/// Who follows whom, for a graph that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// By task: how many others it waits for.
    pub waits: Vec<u32>,
    first: Vec<u32>,
    after: Vec<u32>,
}

impl Order {
    /// Of a graph.
    ///
    /// # Errors
    /// Where a task waits for one that is not there, or for itself.
    pub fn of(graph: &TaskGraph) -> Result<Self, GraphError> {
        let count = graph.tasks.len();
        let mut first = vec![0_u32; count + 1];
        for (task, spec) in graph.tasks.iter().enumerate() {
            for &after in &spec.after {
                if after as usize >= count {
                    return Err(GraphError::Missing { task, after, count });
                }
                first[after as usize + 1] += 1;
            }
        }
        for task in 0..count {
            first[task + 1] += first[task];
        }
        let mut place = first.clone();
        let mut after = vec![0; first[count] as usize];
        for (task, spec) in graph.tasks.iter().enumerate() {
            for &before in &spec.after {
                after[place[before as usize] as usize] = task as u32;
                place[before as usize] += 1;
            }
        }
        let waits = graph.tasks.iter().map(|spec| spec.after.len() as u32);
        let order = Self {
            waits: waits.collect(),
            first,
            after,
        };
        order.check_circles()?;
        Ok(order)
    }

    /// With each task's successors as a graph of the runtime wants them: the one that
    /// was declared next after the task first, round at the end.
    #[must_use]
    pub fn onward(mut self) -> Self {
        for (task, ends) in self.first.windows(2).enumerate() {
            let after = &mut self.after[ends[0] as usize..ends[1] as usize];
            after.sort_unstable_by_key(|next| next.wrapping_sub(task as u32));
        }
        self
    }

    /// The tasks that wait for that one, ascending unless [`Self::onward`].
    pub fn successors(&self, task: u32) -> &[u32] {
        let task = task as usize;
        &self.after[self.first[task] as usize..self.first[task + 1] as usize]
    }

    fn check_circles(&self) -> Result<(), GraphError> {
        let mut waits = self.waits.clone();
        let tasks = 0..waits.len() as u32;
        let mut ready: Vec<u32> = tasks.filter(|&task| waits[task as usize] == 0).collect();
        let mut ran = 0;
        while let Some(task) = ready.pop() {
            ran += 1;
            for &after in self.successors(task) {
                waits[after as usize] -= 1;
                if waits[after as usize] == 0 {
                    ready.push(after);
                }
            }
        }
        match waits.iter().position(|&left| left > 0) {
            None => Ok(()),
            Some(first) => Err(GraphError::Circle {
                count: waits.len() - ran,
                first,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_graph_is_read_and_its_addresses_move_together() {
        let text = r#"{"tasks": [
            {"t": 1, "s": 2, "cycles": 100, "accesses": [
                {"kind": "fetch", "address": 4198400, "bytes": 640},
                {"kind": "load", "address": 140000000000000, "bytes": 16, "rows": 16, "stride": 864, "cycles": 50}]},
            {"after": [0], "accesses": [{"kind": "store", "address": 64, "bytes": 8, "private": true}]}]}"#;
        let graph = TaskGraph::from_json(text).unwrap();
        let of = |task: usize, access: usize| graph.tasks[task].accesses[access].address;
        assert_eq!(of(0, 0), 4_198_400 % SEGMENT_BYTES);
        assert_eq!(
            of(0, 1),
            SEGMENT_BYTES + 140_000_000_000_000 % SEGMENT_BYTES
        );
        assert_eq!(of(1, 0), 64, "private memory stays where it is");
        let (shared, private) = graph.extent().unwrap();
        assert!(shared <= 3 * SEGMENT_BYTES && private == 72);
        let order = Order::of(&graph).unwrap();
        assert_eq!(
            (order.successors(0), &order.waits[..]),
            (&[1][..], &[0, 1][..])
        );
    }

    #[test]
    fn onward_begins_with_the_task_declared_next() {
        let task = |after: &[u32]| TaskSpec {
            after: after.to_vec(),
            ..TaskSpec::default()
        };
        let graph = TaskGraph {
            tasks: vec![task(&[2]), task(&[2]), task(&[]), task(&[2]), task(&[2])],
        };
        let order = Order::of(&graph).unwrap();
        assert_eq!(order.successors(2), [0, 1, 3, 4]);
        assert_eq!(order.onward().successors(2), [3, 4, 0, 1]);
    }

    #[test]
    fn what_cannot_be_run_is_named() {
        let task = |after: &[u32]| TaskSpec {
            after: after.to_vec(),
            ..TaskSpec::default()
        };
        let missing = TaskGraph {
            tasks: vec![task(&[]), task(&[7])],
        };
        let error = Order::of(&missing).unwrap_err().to_string();
        assert_eq!(error, "task 1 waits for task 7, and there are 2");
        let circle = TaskGraph {
            tasks: vec![task(&[]), task(&[0, 2]), task(&[1])],
        };
        let error = Order::of(&circle).unwrap_err().to_string();
        assert!(
            error.starts_with("2 tasks never become ready, task 1 among"),
            "{error}"
        );
        assert!(TaskGraph::from_json("{\"tasks\": [{\"bogus\": 1}]}").is_err());
        let mut far = TaskGraph {
            tasks: vec![task(&[])],
        };
        far.tasks[0]
            .accesses
            .push(Access::row(Kind::Load, u64::MAX - 100, 64));
        assert!(matches!(
            far.extent(),
            Err(GraphError::Address { task: 0, .. })
        ));
        far.compact();
        assert!(far.extent().is_ok());
    }
}
