// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contestants of the task benchmark. A contestant is a task runtime in one *form* of use.
//! Forms of usher-tasks differ in the hints about the order of tasks. Forms of other runtimes
//! differ in what happens to tasks that become ready: all of them go to the runtime's pool, or the
//! program itself runs the first of them next.
//!
//! The name of a form is also its word on the command line of the program.

use serde::{Deserialize, Serialize};

/// A task runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Runtime {
    Usher,
    OneTbb,
    Taskflow,
    Rayon,
    GnuOpenMp,
    LlvmOpenMp,
    /// No runtime: a loop, or threads that the program starts itself, for reference.
    None,
}

impl Runtime {
    pub const PEERS: [Self; 5] = [
        Self::OneTbb,
        Self::Taskflow,
        Self::Rayon,
        Self::GnuOpenMp,
        Self::LlvmOpenMp,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Usher => "usher-tasks",
            Self::OneTbb => "oneTBB",
            Self::Taskflow => "Taskflow",
            Self::Rayon => "rayon",
            Self::GnuOpenMp => "GCC OpenMP",
            Self::LlvmOpenMp => "LLVM OpenMP",
            Self::None => "no runtime",
        }
    }
}

/// A program that runs the workload: this program, or the C++ program of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    Own,
    OneTbb,
    Taskflow,
    GnuOpenMp,
    LlvmOpenMp,
}

/// A runtime in one of its forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contestant {
    pub runtime: Runtime,
    pub program: Program,
    /// Name of the form on the program's command line.
    pub form: &'static str,
    /// Label on the page.
    pub label: &'static str,
    /// Whether the contestant always has one thread, independent of the selected number of threads.
    pub is_sequential: bool,
}

const fn contestant(
    runtime: Runtime,
    program: Program,
    form: &'static str,
    label: &'static str,
) -> Contestant {
    Contestant {
        runtime,
        program,
        form,
        label,
        is_sequential: false,
    }
}

const fn order(form: &'static str, label: &'static str) -> Contestant {
    Contestant {
        is_sequential: true,
        ..contestant(Runtime::None, Program::Own, form, label)
    }
}

/// usher-tasks without hints.
pub const PLAIN: Contestant = contestant(
    Runtime::Usher,
    Program::Own,
    "usher",
    "usher-tasks, no hints",
);
/// usher-tasks without hints; each task is recorded in a trace.
pub const TRACED: Contestant = contestant(
    Runtime::Usher,
    Program::Own,
    "usher-traced",
    "usher-tasks without hints, traced",
);
/// usher-tasks with hints.
pub const HINTED: Contestant = contestant(
    Runtime::Usher,
    Program::Own,
    "usher-hints",
    "usher-tasks with hints (T: row, S: macroblock)",
);
/// usher-tasks with the dispatcher of paper 5.
pub const PAPER: Contestant = contestant(
    Runtime::Usher,
    Program::Own,
    "usher-paper",
    "usher-tasks with the paper's dispatcher",
);

/// All forms of the other runtimes that run the wavefront.
pub const WAVEFRONT_PEERS: [Contestant; 9] = [
    contestant(
        Runtime::OneTbb,
        Program::OneTbb,
        "counters",
        "oneTBB, task_group and counters",
    ),
    contestant(
        Runtime::OneTbb,
        Program::OneTbb,
        "flow",
        "oneTBB, flow graph",
    ),
    contestant(
        Runtime::Taskflow,
        Program::Taskflow,
        "counters",
        "Taskflow, async and counters",
    ),
    contestant(
        Runtime::Taskflow,
        Program::Taskflow,
        "graph",
        "Taskflow, static graph",
    ),
    contestant(
        Runtime::Rayon,
        Program::Own,
        "rayon",
        "rayon, scope and counters",
    ),
    contestant(
        Runtime::GnuOpenMp,
        Program::GnuOpenMp,
        "counters",
        "GCC OpenMP, task and counters",
    ),
    contestant(
        Runtime::GnuOpenMp,
        Program::GnuOpenMp,
        "depend",
        "GCC OpenMP, task depend",
    ),
    contestant(
        Runtime::LlvmOpenMp,
        Program::LlvmOpenMp,
        "counters",
        "LLVM OpenMP, task and counters",
    ),
    contestant(
        Runtime::LlvmOpenMp,
        Program::LlvmOpenMp,
        "depend",
        "LLVM OpenMP, task depend",
    ),
];

/// The forms of the other runtimes in which every ready task goes to the runtime's pool. In these
/// forms, the runtime determines the order of tasks.
pub const SPAWNING_PEERS: [Contestant; 5] = [
    contestant(
        Runtime::OneTbb,
        Program::OneTbb,
        "spawn",
        "oneTBB, task_group, all spawned",
    ),
    contestant(
        Runtime::Taskflow,
        Program::Taskflow,
        "spawn",
        "Taskflow, async, all spawned",
    ),
    contestant(
        Runtime::Rayon,
        Program::Own,
        "rayon-spawn",
        "rayon, scope, all spawned",
    ),
    contestant(
        Runtime::GnuOpenMp,
        Program::GnuOpenMp,
        "spawn",
        "GCC OpenMP, task, all spawned",
    ),
    contestant(
        Runtime::LlvmOpenMp,
        Program::LlvmOpenMp,
        "spawn",
        "LLVM OpenMP, task, all spawned",
    ),
];

/// Returns whether the runtime's pool determines the order of all ready tasks with `threads`
/// threads. The measured order is then the default order of the runtime.
///
/// The result is false if the program itself runs a successor next. It is also false for OpenMP
/// with one thread, except for GCC's `depend`, because there a task runs as soon as it is created.
pub fn is_ordered_by_pool(one: &Contestant, threads: u32) -> bool {
    let by_hand = matches!(one.form, "counters" | "rayon");
    let at_once = match one.runtime {
        Runtime::LlvmOpenMp => threads == 1,
        Runtime::GnuOpenMp => threads == 1 && one.form == "spawn",
        _ => false,
    };
    !by_hand && !at_once
}

/// Contestants that compute fib.
pub const FORK_JOIN: [Contestant; 7] = [
    contestant(Runtime::Usher, Program::Own, "usher", "usher-tasks, join"),
    contestant(Runtime::Rayon, Program::Own, "rayon", "rayon, join"),
    contestant(
        Runtime::OneTbb,
        Program::OneTbb,
        "group",
        "oneTBB, task_group",
    ),
    contestant(
        Runtime::OneTbb,
        Program::OneTbb,
        "invoke",
        "oneTBB, parallel_invoke",
    ),
    contestant(
        Runtime::Taskflow,
        Program::Taskflow,
        "async",
        "Taskflow, async of a runtime task",
    ),
    contestant(
        Runtime::GnuOpenMp,
        Program::GnuOpenMp,
        "task",
        "GCC OpenMP, task and taskwait",
    ),
    contestant(
        Runtime::LlvmOpenMp,
        Program::LlvmOpenMp,
        "task",
        "LLVM OpenMP, task and taskwait",
    ),
];

/// Contestants that run loops.
pub const LOOPS: [Contestant; 7] = [
    contestant(
        Runtime::Usher,
        Program::Own,
        "usher",
        "usher-tasks, for_each and reduce",
    ),
    contestant(
        Runtime::Usher,
        Program::Own,
        "usher-blocks",
        "usher-tasks, for_each_block and reduce_blocks",
    ),
    contestant(
        Runtime::Rayon,
        Program::Own,
        "rayon",
        "rayon, parallel iterators",
    ),
    contestant(
        Runtime::Rayon,
        Program::Own,
        "rayon-chunks",
        "rayon, chunks of 4,096 items",
    ),
    contestant(
        Runtime::OneTbb,
        Program::OneTbb,
        "loop-auto",
        "oneTBB, auto_partitioner",
    ),
    contestant(
        Runtime::OneTbb,
        Program::OneTbb,
        "loop-affinity",
        "oneTBB, affinity_partitioner",
    ),
    contestant(
        Runtime::OneTbb,
        Program::OneTbb,
        "loop-static",
        "oneTBB, static_partitioner",
    ),
];

/// usher-tasks with tokens of a declared range.
pub const DENSE: Contestant = contestant(
    Runtime::Usher,
    Program::Own,
    "usher-dense",
    "usher-tasks, dense tokens",
);
/// usher-tasks with other tokens.
pub const FREE: Contestant = contestant(
    Runtime::Usher,
    Program::Own,
    "usher-tokens",
    "usher-tasks, free tokens",
);
/// oneTBB with an array of counters.
pub const TBB_COUNTERS: Contestant = WAVEFRONT_PEERS[0];
/// oneTBB with counters that it finds by the number of the task.
pub const TBB_MAP: Contestant = contestant(
    Runtime::OneTbb,
    Program::OneTbb,
    "map",
    "oneTBB, task_group and counters in a concurrent_hash_map",
);

/// Contestants that run the wavefront by single tasks instead of a graph.
pub const TOKENS: [Contestant; 4] = [DENSE, FREE, TBB_COUNTERS, TBB_MAP];

/// Contestants that factorise a matrix: usher-tasks, which has the bars, and OpenMP's `depend`.
pub const DEPEND: [Contestant; 4] = [
    contestant(
        Runtime::Usher,
        Program::Own,
        "usher-depend",
        "usher-tasks, dependencies by data",
    ),
    contestant(Runtime::Usher, Program::Own, "usher", "usher-tasks, graph"),
    WAVEFRONT_PEERS[6],
    WAVEFRONT_PEERS[8],
];

/// The loop over macroblocks. Its time is the time of the tasks without a runtime.
pub const ORDER_TS: Contestant = order("order-ts", "loop over the macroblocks (T/S order)");

/// The loops that run all tasks in a fixed order.
pub const ORDERS: [Contestant; 4] = [
    ORDER_TS,
    order("order-fifo", "loop in the order of a FIFO queue"),
    order("order-lifo", "loop in the order of a LIFO stack"),
    order("order-stages", "loop over stages"),
];

/// Threads that run the wavefront without a runtime.
pub const BY_HAND: Contestant = contestant(
    Runtime::None,
    Program::Own,
    "by-hand",
    "hand-written loop over the rows",
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::inside::Form;
    use clap::ValueEnum as _;

    #[test]
    fn a_chain_by_hand_is_no_order_of_a_pool() {
        let count = |threads| {
            let all = WAVEFRONT_PEERS.iter().chain(&SPAWNING_PEERS);
            all.filter(|one| is_ordered_by_pool(one, threads)).count()
        };
        assert_eq!((count(1), count(2)), (6, 9));
    }

    #[test]
    fn own_contestants_have_valid_forms() {
        let all = [PLAIN, TRACED, HINTED, PAPER, BY_HAND]
            .into_iter()
            .chain(WAVEFRONT_PEERS)
            .chain(SPAWNING_PEERS)
            .chain(FORK_JOIN)
            .chain(LOOPS)
            .chain(TOKENS)
            .chain(DEPEND)
            .chain(ORDERS);
        for one in all.filter(|one| one.program == Program::Own) {
            assert!(Form::from_str(one.form, false).is_ok(), "{}", one.form);
        }
    }
}
