// SPDX-License-Identifier: MIT OR Apache-2.0
//! Draws which worker ran which task when, as figure 13 of paper 5 does. The tasks are those of a
//! small video frame. For each policy, the program writes two SVG pictures (coloured by temporal
//! and by spatial group) and a trace for ui.perfetto.dev, and prints the counters of the workers.
//! `cargo run --release -p usher-tasks --example picture [WORKERS] [DIR]`

use std::error::Error;
use std::fs::{File, create_dir_all};
use std::hint::black_box;
use std::num::ParseIntError;
use std::path::PathBuf;

mod frame;

use usher_tasks::{ColorBy, Groups, Policy, Runtime};

use frame::STAGES;

const COLUMNS: usize = 40;
const ROWS: usize = 22;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let workers = words.next().map_or(Ok(2), |word| {
        let usage = |error| {
            format!("usage: picture [WORKERS] [DIR]; WORKERS must be a number, not {word}: {error}")
        };
        word.parse().map_err(|error: ParseIntError| usage(error))
    })?;
    let dir = PathBuf::from(words.next().unwrap_or_else(|| "pictures".to_owned()));
    create_dir_all(&dir)?;
    let paper = Policy::Paper {
        t_groups: ROWS as u32 + 1,
        s_groups: STAGES as u32 + 1,
    };
    for (name, policy) in [
        ("fcfs", Policy::Fcfs),
        ("lcfs", Policy::Lcfs),
        ("paper", paper),
        ("usher", Policy::Usher),
    ] {
        let runtime = Runtime::with_policy(workers, policy)?;
        let mut graph = frame::wavefront(COLUMNS, ROWS, groups).build(|task| {
            // Computes for one or two microseconds.
            black_box((0..700_u64).fold(task as u64, |sum, x| sum.rotate_left(5) ^ x));
        })?;
        runtime.run(&mut graph)?;
        runtime.start_trace(graph.len())?;
        runtime.run(&mut graph)?;
        let trace = runtime.trace();
        for (by, color_by) in [("t", ColorBy::T), ("s", ColorBy::S)] {
            let path = dir.join(format!("{name}-{by}.svg"));
            trace.write_svg(color_by, File::create(&path)?)?;
            println!("{}", path.display());
        }
        let path = dir.join(format!("{name}.json"));
        trace.write_chrome(std::io::BufWriter::new(File::create(&path)?))?;
        println!("{}\n{}", path.display(), runtime.counters());
    }
    Ok(())
}

/// Returns the groups of a task: the row is the temporal group, the stage the spatial group.
fn groups(_: usize, y: usize, stage: usize) -> Groups {
    Groups::new(y as u32 + 1, stage as u32 + 1)
}
