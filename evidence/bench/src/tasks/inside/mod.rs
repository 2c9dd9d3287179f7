// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hidden command `usher-bench tasks-inside FORM`, which runs one contestant in a process of
//! its own: usher-tasks, rayon, loops in a fixed order, or threads without a runtime. The C++
//! programs have the same command line. Two further forms measure the memory of registered tasks, and one the CPU time of many
//! workers.

mod by_hand;
mod counters;
mod depend;
mod footprint;
mod order;
mod ours;
mod rayon;
mod tokens;
mod workers;

pub use ours::CHOSEN;

use anyhow::{Result, bail};
use clap::ValueEnum;
use usher_tasks::{Groups, Policy};

use super::workload::Workload;

/// Name of the hidden command, which runs one form.
pub const COMMAND: &str = "tasks-inside";

/// The forms that run the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Our runtime without hints; for fib, its `join`; for loops, `for_each` and `reduce`
    Usher,
    /// Our runtime without hints, with a trace of each task
    UsherTraced,
    /// Our runtime: T is the row, S the macroblock
    UsherHints,
    /// Our runtime: loops by `for_each_block` and `reduce_blocks`
    UsherBlocks,
    /// Our runtime: tasks by token, of a declared range
    UsherDense,
    /// Our runtime: tasks by token, without a declared range
    UsherTokens,
    /// Our runtime: tasks ordered by the tiles that they use
    UsherDepend,
    /// Our runtime with the paper's dispatcher: T is the row, S the stage
    UsherPaper,
    /// rayon: a scope with counters; for fib, `join`; for loops, parallel iterators
    Rayon,
    /// rayon: a scope, which spawns each task as soon as it is ready
    RayonSpawn,
    /// rayon: loops over chunks of a fixed size
    RayonChunks,
    /// A loop over macroblocks, all stages of each
    OrderTs,
    /// A loop in the order of a queue
    OrderFifo,
    /// A loop in the order of a stack
    OrderLifo,
    /// A loop over stages
    OrderStages,
    /// Rows by threads that take turns and wait for each other's progress
    ByHand,
    /// Registers tasks and prints their memory
    Footprint,
    /// Registers tasks, resolves each, and counts those that ran
    Flight,
    /// Runs tasks of an outside thread on many workers, and prints the CPU time
    Workers,
}

/// Arguments of the hidden command.
#[derive(Debug, Clone, clap::Args)]
pub struct InsideArgs {
    form: Form,
    /// `THREADS MS FRAMES` and the workload; for a form that registers tasks, the number of tasks
    #[arg(trailing_var_arg = true)]
    words: Vec<String>,
}

/// Runs one form, and prints its times or its memory.
pub fn run(args: &InsideArgs) -> Result<()> {
    match args.form {
        Form::Footprint => return footprint::footprint(&args.words),
        Form::Flight => return footprint::flight(&args.words),
        Form::Workers => return workers::run(&args.words),
        _ => {}
    }
    let work = Workload::begin(&args.words)?;
    if let Some(n) = work.fib() {
        return match args.form {
            Form::Usher => ours::fib(work, n),
            Form::Rayon => rayon::fib(work, n),
            _ => bail!("this form of the runtime cannot compute fib"),
        };
    }
    if let Some(tasks) = work.tile_tasks() {
        return match args.form {
            Form::Usher => depend::graph(work, tasks),
            Form::UsherDepend => depend::cholesky(work, tasks),
            _ => bail!("this form of the runtime cannot factorise a matrix"),
        };
    }
    if let Some(items) = work.items() {
        return match args.form {
            Form::Usher => ours::loops(work, items),
            Form::UsherBlocks => ours::loops_of_blocks(work, items),
            Form::Rayon => rayon::loops(work, items),
            Form::RayonChunks => rayon::loops_of_chunks(work, items),
            _ => bail!("this form of the runtime cannot run loops"),
        };
    }
    let block = |task: u32| task / work.stages();
    let row = |task: u32| block(task) / work.columns();
    match args.form {
        Form::Usher => ours::wavefront(work, Policy::Usher, |_| Groups::NONE),
        Form::UsherTraced => ours::traced(work),
        Form::UsherHints => ours::wavefront(work, Policy::Usher, |task| {
            Groups::new(row(task) + 1, block(task) + 1)
        }),
        Form::UsherPaper => {
            let policy = Policy::Paper {
                t_groups: work.rows() + 1,
                s_groups: work.stages() + 1,
            };
            ours::wavefront(work, policy, |task| {
                Groups::new(row(task) + 1, task % work.stages() + 1)
            })
        }
        Form::UsherDense => tokens::wavefront(work, true),
        Form::UsherTokens => tokens::wavefront(work, false),
        Form::Rayon => rayon::wavefront::<true>(work),
        Form::RayonSpawn => rayon::wavefront::<false>(work),
        Form::OrderTs => order::run(work, (0..work.tasks()).collect()),
        Form::OrderFifo => order::run(work, order::queue(work)),
        Form::OrderLifo => order::run(work, order::stack(work)),
        Form::OrderStages => order::run(work, order::by_stage(work)),
        Form::ByHand => by_hand::run(work),
        Form::UsherBlocks | Form::RayonChunks => bail!("this form of the runtime runs only loops"),
        Form::UsherDepend => bail!("this form of the runtime only factorises a matrix"),
        Form::Footprint | Form::Flight | Form::Workers => Ok(()),
    }
}
