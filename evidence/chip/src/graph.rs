// SPDX-License-Identifier: MIT OR Apache-2.0
//! Task graphs with the memory accesses of each task. A model of a program generates a graph
//! ([`crate::h264`]), or a recording in JSON is read ([`TaskGraph::from_json`]). Graphs with
//! missing tasks, cyclic dependencies or addresses above 1 GiB are rejected. The addresses of a
//! recording are moved closer together without a change of their cache sets.

use serde::{Deserialize, Serialize};

/// Kind of a memory access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessKind {
    /// Instruction fetch.
    Fetch,
    /// Data read.
    Load,
    /// Data write.
    Store,
}

/// A block of memory that a task accesses: `rows` rows of `bytes` bytes each. The starts of two
/// neighbouring rows are `stride` bytes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskAccess {
    /// Kind of the access.
    pub kind: AccessKind,
    /// Address of the first row. An address of private memory is relative to the private memory of
    /// the core.
    pub address: u64,
    /// Bytes per row.
    pub bytes: u32,
    /// Number of rows.
    #[serde(default = "one")]
    pub rows: u32,
    /// Distance between the starts of two rows in bytes.
    #[serde(default)]
    pub stride: u32,
    /// Whether the memory is private: each core has its own copy, as of a stack.
    #[serde(default)]
    pub private: bool,
    /// Cycles of work that belong to the access, without waits for memory.
    #[serde(default)]
    pub cycles: u32,
}

fn one() -> u32 {
    1
}

impl TaskAccess {
    /// Returns an access to one row of shared memory, without work.
    pub fn row(kind: AccessKind, address: u64, bytes: u32) -> Self {
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

    /// Returns the address after the last byte of the block.
    pub fn end(&self) -> u64 {
        let rows = u64::from(self.rows.saturating_sub(1)) * u64::from(self.stride);
        let span = rows.saturating_add(u64::from(self.bytes));
        self.address.saturating_add(span)
    }
}

/// A task of a graph.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// Number of the temporal group of the task; 0: no group.
    #[serde(default)]
    pub t: u32,
    /// Number of the spatial group of the task; 0: no group.
    #[serde(default)]
    pub s: u32,
    /// Indices of the tasks that must end before this task starts.
    #[serde(default)]
    pub after: Vec<u32>,
    /// Cycles of work before the first access.
    #[serde(default)]
    pub cycles: u32,
    /// Memory accesses, in the order in which the task executes them.
    #[serde(default)]
    pub accesses: Vec<TaskAccess>,
}

/// A graph of tasks and their dependencies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskGraph {
    /// The tasks. Their order determines only in which order the tasks that are ready at the start
    /// enter the dispatcher.
    pub tasks: Vec<TaskSpec>,
}

/// Error: a graph is invalid.
#[derive(Debug, thiserror::Error)]
pub enum TaskGraphError {
    /// The text is not JSON, or not a graph.
    #[error("reading the file of a recorded graph: {0}")]
    Json(#[from] serde_json::Error),
    /// A task depends on a task that does not exist.
    #[error("task {task} waits for task {after}, but the graph has {count} tasks")]
    Missing {
        /// Index of the task.
        task: usize,
        /// Index of the missing task.
        after: u32,
        /// Number of tasks.
        count: usize,
    },
    /// The dependencies contain a cycle.
    #[error(
        "{count} tasks never become ready, task {first} among them: their dependencies form a cycle"
    )]
    Circle {
        /// Number of tasks that can never become ready.
        count: usize,
        /// Index of the first task that can never become ready.
        first: usize,
    },
    /// An access is outside the modelled memory.
    #[error(
        "task {task} touches addresses up to {end:#x}; the modelled memory has {limit:#x} bytes"
    )]
    Address {
        /// Index of the task with the access.
        task: usize,
        /// Address after the last byte of the access.
        end: u64,
        /// Size of the modelled memory.
        limit: u64,
    },
}

/// Size of the modelled shared memory, and of the modelled private memory of a core.
pub const MEMORY_BYTES: u64 = 1 << 30;
/// Size of the segments in which `compact` moves addresses. The lower address bits do not change;
/// these bits select the set in each cache with ways of at most this size.
pub const SEGMENT_BYTES: u64 = 128 << 10;

impl TaskGraph {
    /// Reads a recorded graph, and moves its addresses closer together (`compact`).
    ///
    /// # Errors
    /// The text is not a valid graph, or a single access is larger than the modelled memory.
    pub fn from_json(text: &str) -> Result<Self, TaskGraphError> {
        let mut graph: Self = serde_json::from_str(text)?;
        for (task, spec) in graph.tasks.iter().enumerate() {
            for access in &spec.accesses {
                let limit = MEMORY_BYTES;
                let end = access.end();
                if end - access.address > limit {
                    return Err(TaskGraphError::Address { task, end, limit });
                }
            }
        }
        graph.compact();
        Ok(graph)
    }

    /// Moves the segments of [`SEGMENT_BYTES`] that contain shared accesses next to one another, in
    /// the order of their addresses, so that recorded 64-bit addresses fit into the modelled
    /// memory. The cache set of an address does not change if a way of the cache has at most
    /// [`SEGMENT_BYTES`].
    fn compact(&mut self) {
        let shared = |access: &&mut TaskAccess| !access.private;
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

    /// Returns the size in bytes of the shared memory that the tasks access, and of the private
    /// memory of a core.
    ///
    /// # Errors
    /// An access is beyond [`MEMORY_BYTES`].
    pub fn extent(&self) -> Result<(u64, u64), TaskGraphError> {
        let (mut shared, mut private) = (0, 0);
        for (task, spec) in self.tasks.iter().enumerate() {
            for access in &spec.accesses {
                let end = access.end();
                if end > MEMORY_BYTES {
                    let limit = MEMORY_BYTES;
                    return Err(TaskGraphError::Address { task, end, limit });
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

/// The dependencies of an acyclic graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependencies {
    /// For each task, the number of tasks that it waits for.
    pub waits: Vec<u32>,
    first: Vec<u32>,
    after: Vec<u32>,
}

impl Dependencies {
    /// Computes the dependencies of a graph, in time proportional to the number of tasks and
    /// dependencies.
    ///
    /// # Errors
    /// A task depends on a missing task, or the dependencies contain a cycle.
    pub fn of(graph: &TaskGraph) -> Result<Self, TaskGraphError> {
        let count = graph.tasks.len();
        let mut first = vec![0_u32; count + 1];
        for (task, spec) in graph.tasks.iter().enumerate() {
            for &after in &spec.after {
                if after as usize >= count {
                    return Err(TaskGraphError::Missing { task, after, count });
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
        order.check_acyclic()?;
        Ok(order)
    }

    /// Orders the successors of each task as the runtime `usher-tasks` does for graphs: first the
    /// successors that were declared after the task, then those that were declared before it.
    #[must_use]
    pub fn onward(mut self) -> Self {
        for (task, ends) in self.first.windows(2).enumerate() {
            let after = &mut self.after[ends[0] as usize..ends[1] as usize];
            after.sort_unstable_by_key(|next| next.wrapping_sub(task as u32));
        }
        self
    }

    /// Returns the successors of a task, in ascending order unless [`Self::onward`] has changed the
    /// order.
    pub fn successors(&self, task: u32) -> &[u32] {
        let task = task as usize;
        &self.after[self.first[task] as usize..self.first[task + 1] as usize]
    }

    fn check_acyclic(&self) -> Result<(), TaskGraphError> {
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
            Some(first) => Err(TaskGraphError::Circle {
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
    fn reads_recorded_graph_and_compacts_its_addresses() {
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
        assert_eq!(of(1, 0), 64, "private memory does not move");
        let (shared, private) = graph.extent().unwrap();
        assert!(shared <= 3 * SEGMENT_BYTES && private == 72);
        let order = Dependencies::of(&graph).unwrap();
        assert_eq!(
            (order.successors(0), &order.waits[..]),
            (&[1][..], &[0, 1][..])
        );
    }

    #[test]
    fn onward_starts_with_the_task_declared_next() {
        let task = |after: &[u32]| TaskSpec {
            after: after.to_vec(),
            ..TaskSpec::default()
        };
        let graph = TaskGraph {
            tasks: vec![task(&[2]), task(&[2]), task(&[]), task(&[2]), task(&[2])],
        };
        let order = Dependencies::of(&graph).unwrap();
        assert_eq!(order.successors(2), [0, 1, 3, 4]);
        assert_eq!(order.onward().successors(2), [3, 4, 0, 1]);
    }

    #[test]
    fn rejects_invalid_graphs_with_reason() {
        let task = |after: &[u32]| TaskSpec {
            after: after.to_vec(),
            ..TaskSpec::default()
        };
        let missing = TaskGraph {
            tasks: vec![task(&[]), task(&[7])],
        };
        let error = Dependencies::of(&missing).unwrap_err().to_string();
        assert_eq!(error, "task 1 waits for task 7, but the graph has 2 tasks");
        let circle = TaskGraph {
            tasks: vec![task(&[]), task(&[0, 2]), task(&[1])],
        };
        let error = Dependencies::of(&circle).unwrap_err().to_string();
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
            .push(TaskAccess::row(AccessKind::Load, u64::MAX - 100, 64));
        assert!(matches!(
            far.extent(),
            Err(TaskGraphError::Address { task: 0, .. })
        ));
        far.compact();
        assert!(far.extent().is_ok());
    }
}
