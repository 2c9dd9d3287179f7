// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of random calls of the C API from one thread. The results are compared with a model of
//! tokens (`model`), with the expected results of random graphs, options and colourings, and with
//! the content of blocks. A failed case prints its seed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;
mod model;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use oorandom::Rand64;
use usher_tasks::color::Blocks;
use usher_tasks_capi::color::*;
use usher_tasks_capi::current_task::{Entry, usher_tasks_fail};
use usher_tasks_capi::error::ErrorCode;
use usher_tasks_capi::graph::GraphHandle;

use common::*;
use model::Machine;

#[test]
fn random_calls_match_the_model() {
    each_seed(300, |random| {
        let mut machine = Machine::new(random);
        for _ in 0..random.rand_range(5..120) {
            machine.call(random);
        }
        machine.end();
    });
}

#[test]
fn random_graphs_are_rejected_or_run_in_order() {
    each_seed(300, |random| {
        let tasks = random.rand_range(0..40) as usize;
        let case = GraphCase::random(random, tasks);
        let owner = OwnedRuntime::new(random.rand_range(1..4) as u32);
        case.check(&owner);
    });
}

/// The argument of a task of a graph: the clock, and the time at which the task ran.
struct Step<'a> {
    clock: &'a AtomicU64,
    at: AtomicU64,
    ran: AtomicU32,
    fails: bool,
}

unsafe extern "C-unwind" fn step(arg: *mut c_void) {
    // SAFETY: the code below passes a `Step` as the argument, which outlives the run.
    let step = unsafe { &*arg.cast::<Step<'_>>() };
    step.at
        .store(step.clock.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
    step.ran.fetch_add(1, Ordering::SeqCst);
    if step.fails {
        // SAFETY: the argument is a string that ends with a 0.
        assert_eq!(unsafe { usher_tasks_fail(c"requested".as_ptr()) }, OK);
    }
}

/// A random graph: for each task whether it fails, and dependencies that may form a cycle.
struct GraphCase {
    fails: Vec<bool>,
    after: Vec<(usize, usize)>,
}

impl GraphCase {
    fn random(random: &mut Rand64, tasks: usize) -> Self {
        let fails_one_in = [1_u64 << 60, 20][random.rand_range(0..2) as usize];
        let one = |random: &mut Rand64, below: usize| random.rand_range(0..below as u64) as usize;
        let mut after = Vec::new();
        for _ in 0..if tasks == 0 {
            0
        } else {
            random.rand_range(0..80)
        } {
            let (a, b) = (one(random, tasks), one(random, tasks));
            if a != b {
                after.push((a.max(b), a.min(b)));
            }
        }
        if tasks > 0 && random.rand_range(0..5) == 0 {
            after.push((one(random, tasks), one(random, tasks)));
        }
        if random.rand_range(0..10) == 0 {
            after.push((tasks + one(random, 3), 0));
        }
        let fails = (0..tasks).map(|_| random.rand_range(0..fails_one_in) == 0);
        Self {
            fails: fails.collect(),
            after,
        }
    }

    /// Returns the expected result of building the graph. A search from each task finds cycles.
    fn expected(&self) -> c_int {
        let count = self.fails.len();
        if self.after.iter().any(|&(a, b)| a.max(b) >= count) {
            return ErrorCode::Range as c_int;
        }
        let comes_back = |start: usize| {
            let mut seen = vec![false; count];
            let mut next = vec![start];
            while let Some(task) = next.pop() {
                for &(after, before) in &self.after {
                    if before == task && !std::mem::replace(&mut seen[after], true) {
                        next.push(after);
                    }
                }
            }
            seen[start]
        };
        match (0..count).any(comes_back) {
            true => ErrorCode::Cycle as c_int,
            false => OK,
        }
    }

    fn check(&self, owner: &OwnedRuntime) {
        let clock = AtomicU64::new(0);
        let step_of = |&fails: &bool| Step {
            clock: &clock,
            at: AtomicU64::new(0),
            ran: AtomicU32::new(0),
            fails,
        };
        let steps: Vec<Step<'_>> = self.fails.iter().map(step_of).collect();
        let task = |one: &Step<'_>| {
            let arg = ptr::from_ref(one).cast_mut().cast();
            (Some(step as Entry), arg, (0, 0))
        };
        let tasks: Vec<_> = steps.iter().map(task).collect();
        let (code, graph, cycle) = graph(&tasks, &self.after);
        assert_eq!(code, self.expected(), "{:?}", self.after);
        if code != OK {
            let next = cycle.iter().cycle().skip(1);
            for (one, other) in cycle.iter().zip(next) {
                let edge = (other.1 as usize, one.1 as usize);
                assert!(self.after.contains(&edge), "{edge:?} of {cycle:?}");
            }
            assert_eq!(code == ErrorCode::Cycle as c_int, !cycle.is_empty());
            return;
        }
        for run in 1..4 {
            self.check_run(owner, graph, &steps, run);
        }
        free(graph);
    }

    fn check_run(
        &self,
        owner: &OwnedRuntime,
        graph: *mut GraphHandle,
        steps: &[Step<'_>],
        run: u32,
    ) {
        let (code, lines, skipped) = owner.run(graph);
        if !self.fails.contains(&true) {
            assert_eq!((code, lines, skipped), (OK, vec![], 0));
            assert!(
                steps
                    .iter()
                    .all(|step| step.ran.load(Ordering::SeqCst) == run)
            );
            for &(task, before) in &self.after {
                let at = |task: usize| steps[task].at.load(Ordering::SeqCst);
                assert!(at(before) < at(task), "{task} ran before {before}");
            }
            return;
        }
        assert_eq!(code, ErrorCode::Failed as c_int);
        assert!(!lines.is_empty());
        for line in &lines {
            assert_eq!(*line, failed(line.1, "requested"));
            assert!(self.fails[line.1 as usize]);
        }
        let ran = steps
            .iter()
            .map(|step| step.ran.swap(run, Ordering::SeqCst) + 1 - run);
        assert_eq!(u64::from(ran.sum::<u32>()) + skipped, steps.len() as u64);
    }
}

#[test]
fn random_options_are_rejected_or_create_a_runtime() {
    each_seed(300, |random| {
        let any =
            |random: &mut Rand64, of: &[u64]| of[random.rand_range(0..of.len() as u64) as usize];
        let mut bytes = [0_u64; 9];
        let beyond = any(random, &[0, 0, 0, 1 << 47]);
        let binding = any(random, &[0, 0, 1, 2]);
        bytes[3] = binding;
        bytes[5] = any(random, &[0, 0, 1, 2]);
        bytes[3 + random.rand_range(0..6) as usize] |= beyond;
        let size = any(
            random,
            &[24, 24, 32, 40, 48, 56, 64, 72, 0, 23, 4097, u64::MAX],
        );
        let workers = any(random, &[1, 2, 3, 0, 1025, u64::from(u32::MAX)]) as u32;
        let policy = any(random, &[0, 1, 2, 3, 4, u64::from(u32::MAX)]) as u32;
        let group = [0, 1, 7, 1 << 6, 1 << 12, u64::from(u32::MAX)];
        let groups = [any(random, &group), any(random, &group)];
        bytes[0] = size;
        bytes[1] = u64::from(workers) | u64::from(policy) << 32;
        bytes[2] = groups[0] | groups[1] << 32;
        let known = (size as usize / 8).clamp(3, 9);
        // The fourth word contains the binding and the limit of running workers. The fifth word
        // contains the size of the stacks, which may be too large, and the sixth the report of
        // progress. The seventh word contains the first dense token, and the eighth word their
        // number, which may be too large.
        let running = bytes[3] >> 32;
        let is_known = (24..=4096).contains(&size) && (known < 9 || bytes[8] == 0);
        let is_valid = known < 4 || (binding < 2 && running < 2);
        let is_valid = is_valid && (known < 6 || bytes[5] < 2);
        let has_stacks = known < 5 || bytes[4] == 0;
        let has_dense_tokens = known < 8 || bytes[7] == 0;
        let queues = groups[0].max(1) * groups[1].max(1);
        let expected = match (workers, policy) {
            _ if !is_known => ErrorCode::Options as c_int,
            (_, 4..) => ErrorCode::Options as c_int,
            (_, 1) if queues > 1 << 22 => ErrorCode::Groups as c_int,
            _ if !is_valid => ErrorCode::Options as c_int,
            (0 | 1025.., _) => ErrorCode::Workers as c_int,
            _ if !has_stacks => ErrorCode::Thread as c_int,
            _ if !has_dense_tokens => ErrorCode::Options as c_int,
            _ => OK,
        };
        let (code, runtime) = runtime_new(bytes.as_ptr().cast());
        assert_eq!(code, expected, "{bytes:?}: {}", last_error());
        assert_eq!(code == OK, !runtime.is_null());
        drop((code == OK).then(|| OwnedRuntime(runtime)));
    });
}

/// The blocks in use, by the address of their headers: the block's base, and the value that was
/// written to each of its bytes.
type OwnedBlocks = BTreeMap<usize, (*mut u8, u8)>;

#[test]
fn random_blocks_are_distinct_and_found_from_inner_pointers() {
    each_seed(100, |random| {
        let block_bytes = 1_usize << random.rand_range(4..16);
        let coloring = ColoringSpec {
            block_bytes,
            header_bytes: random.rand_range(0..300) as usize,
            colors: random.rand_range(0..40) as usize,
        };
        let mut blocks = ptr::dangling_mut();
        // SAFETY: `coloring` is readable, and the out-pointer refers to a local variable.
        let code = unsafe { usher_blocks_new(&raw const coloring, &raw mut blocks) };
        let end = coloring.header_bytes + coloring.colors.saturating_sub(1) * 64;
        let can_be = block_bytes >= 64 && coloring.colors > 0 && end <= block_bytes;
        let expected = if can_be {
            OK
        } else {
            ErrorCode::Coloring as c_int
        };
        assert_eq!(code, expected, "{coloring:?}");
        let mut owned = OwnedBlocks::new();
        for _ in 0..if can_be { 200 } else { 0 } {
            match random.rand_range(0..5) {
                0..3 => take(blocks, &coloring, &mut owned, random.rand_u64() as u8),
                _ => give_back(blocks, &coloring, &mut owned, random),
            }
        }
        // SAFETY: the blocks are null or were created above.
        unsafe { usher_blocks_destroy(blocks) };
    });
}

fn take(blocks: *mut Blocks, coloring: &ColoringSpec, owned: &mut OwnedBlocks, fill: u8) {
    let mut header = ptr::null_mut();
    // SAFETY: `blocks` is valid. The block belongs to this code as a whole, and its header is
    // inside it.
    unsafe {
        assert_eq!(usher_blocks_take(blocks, &raw mut header), OK);
        let base = usher_coloring_base(coloring, header).cast::<u8>();
        base.write_bytes(fill, coloring.block_bytes);
        let before = owned.insert(header.addr(), (base, fill));
        assert!(before.is_none(), "given out twice");
    }
}

fn give_back(
    blocks: *mut Blocks,
    coloring: &ColoringSpec,
    owned: &mut OwnedBlocks,
    random: &mut Rand64,
) {
    let nth = random.rand_range(0..owned.len().max(1) as u64) as usize;
    let Some(&header) = owned.keys().nth(nth) else {
        return;
    };
    let (base, fill) = owned.remove(&header).unwrap();
    let inside = random.rand_range(0..coloring.block_bytes as u64) as usize;
    // SAFETY: the block belongs to this code, which does not use it after returning it.
    unsafe {
        let bytes = std::slice::from_raw_parts(base, coloring.block_bytes);
        assert!(
            bytes.iter().all(|&byte| byte == fill),
            "owned by another, too"
        );
        let inside = base.add(inside).cast();
        assert_eq!(usher_coloring_header(coloring, inside).addr(), header);
        assert_eq!(usher_blocks_give_back(blocks, inside), OK);
    }
}
