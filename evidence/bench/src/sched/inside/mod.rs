// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program that runs in the guest (`usher-bench sched-inside PLAN`). It executes the plan, and
//! prints each measurement as a line of JSON on standard output.
//!
//! 1. Wait until the guest is quiet after boot.
//! 2. Start the programs of all loads once, and let each program work briefly. Files are therefore
//!    read and just-in-time compilation is complete before the first measurement, equally for all
//!    schedulers. Then wait again until the guest is quiet.
//! 3. For each scheduler: start the scheduler, run its loads round by round, end the scheduler. If
//!    a load fails, the program reports that the load is left out, and continues with the next
//!    load. If a scheduler does not start, all its loads are left out.
//!
//! An error in step 1 or 2 ends the program: nothing is measured in this guest.
//!
//! The code uses the word "turn" in two meanings. In a plan, a turn is one scheduler with its loads
//! and rounds ([`SchedulerPlan`]). In the names of figures (`TURN_ALONE`), a turn is one transfer
//! of control between two partners ([`turns`]).
//!
//! Limits of waits:
//!
//! - A wait for a quiet guest ends after 15 s (60 checks every 250 ms), quiet or not.
//! - A baseline or a scheduler of another project must start within 120 s. The start of Usher's
//!   scheduler and the end of any scheduler have no limit here.
//! - The work of the programs has no time limit here. The host ends each guest after 6 h (module
//!   `lab`).

pub mod baseline;
mod idle;
pub mod loads;
pub mod programs;
mod running;
pub mod seated;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::messages::{GuestLoad, GuestMessage, GuestPlan, LOOPS, Sample, SchedulerPlan};
use super::sample_names::{ALONE_S, FORKED, TURN_ALONE, TURN_OF_PROCESSES, TURN_OF_THREADS};
use super::turns;
use loads::LoadPrograms;
use programs::Program;
use running::{RunningScheduler, SwitchCounter};

/// Name of the hidden command, which runs in a guest.
pub const COMMAND: &str = "sched-inside";

/// Arguments of the program in the guest.
#[derive(Debug, Clone, clap::Args)]
pub struct InsideArgs {
    /// Plan of the measurements as JSON
    plan: String,
}

/// Executes the plan of measurements. Fails if the plan is no valid JSON, or if a program does not
/// start or does not complete its first work.
pub fn run(args: &InsideArgs) -> Result<()> {
    let plan: GuestPlan = serde_json::from_str(&args.plan).context("reading the plan")?;
    idle::settle()?;
    let mut workloads = Workloads {
        steps_a_ms: programs::steps_a_ms(),
        ..Workloads::default()
    };
    for turn in &plan.turns {
        for load in &turn.loads {
            workloads.prepare(load)?;
        }
    }
    idle::settle()?;
    for turn in &plan.turns {
        let held = RunningScheduler::start(&turn.scheduler, &plan.usher);
        for load in &turn.loads {
            let measured = match &held {
                Ok(held) => measure(&plan, &mut workloads, turn, load, held),
                Err(error) => Err(anyhow::anyhow!("{error:#}")),
            };
            let (part, scheduler) = (load.part().to_owned(), turn.scheduler.clone());
            let rounds = turn.rounds.clone();
            send(&match measured {
                Ok(()) => GuestMessage::Done {
                    part,
                    scheduler,
                    rounds,
                },
                Err(error) => GuestMessage::LeftOut {
                    part,
                    scheduler,
                    rounds,
                    why: format!("{error:#}"),
                },
            })?;
        }
    }
    Ok(())
}

fn send(message: &GuestMessage) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(message)?)?;
    Ok(out.flush()?)
}

/// Measures a load under the present scheduler, round by round.
fn measure(
    plan: &GuestPlan,
    workloads: &mut Workloads,
    turn: &SchedulerPlan,
    load: &GuestLoad,
    held: &RunningScheduler,
) -> Result<()> {
    for &round in &turn.rounds {
        for programs in load.numbers() {
            let sample = Sample {
                part: load.part().to_owned(),
                scheduler: turn.scheduler.clone(),
                programs,
                round,
                counted: None,
                ends_s: vec![],
                late_ms: vec![],
                figures: BTreeMap::new(),
            };
            let sample = workloads.measure(load, sample, plan)?;
            held.check()?;
            send(&GuestMessage::Sample(Box::new(sample)))?;
        }
    }
    Ok(())
}

/// The two loops with the short work in each repetition. The order in which loops start determines
/// which loops share a core; the repetitions therefore cover all pairs of loops.
const SHORT: [[usize; 2]; 6] = [[0, 2], [1, 3], [0, 1], [2, 3], [0, 3], [1, 2]];

/// The programs of all loads, which are started once and measured under all schedulers.
#[derive(Debug, Default)]
struct Workloads {
    steps_a_ms: f64,
    workers: Vec<Program>,
    vms: Vec<Program>,
    mix: Vec<Program>,
    loops: Vec<Program>,
    peers: LoadPrograms,
}

impl Workloads {
    fn steps(&self, ms: u64) -> u64 {
        (self.steps_a_ms * ms as f64) as u64
    }

    /// Starts those programs of the load that do not run yet, and lets all of them work briefly.
    /// There is no time limit.
    fn prepare(&mut self, load: &GuestLoad) -> Result<()> {
        let warm = |programs: &mut [Program], line: &str| {
            let lines = vec![line.to_owned(); programs.len()];
            programs::run(programs, &lines).map(drop)
        };
        match load {
            GuestLoad::Spaces {
                programs, threads, ..
            } => {
                while self.workers.len() < *programs {
                    self.workers.push(Program::worker(*threads)?);
                }
                warm(&mut self.workers, "1000")
            }
            GuestLoad::Erlang {
                vms,
                command,
                environment,
                ..
            } => {
                let most = vms.iter().copied().max().unwrap_or(0);
                if self.vms.len() >= most {
                    return Ok(());
                }
                let (program, args) = command
                    .split_first()
                    .context("the command line of Erlang is missing")?;
                while self.vms.len() < most {
                    let mut command = Command::new(program);
                    command.args(args).envs(environment);
                    self.vms.push(Program::start(&mut command)?);
                }
                warm(&mut self.vms, "go")
            }
            GuestLoad::Mix { commands } => {
                if self.mix.is_empty() {
                    for command in commands {
                        let (program, args) = command.split_first().context("no command")?;
                        self.mix
                            .push(Program::start(Command::new(program).args(args))?);
                    }
                    warm(&mut self.mix, "go")?;
                }
                Ok(())
            }
            GuestLoad::Cores { .. } | GuestLoad::ForkStorm { .. } => {
                while self.loops.len() < LOOPS {
                    self.loops.push(Program::worker(1)?);
                }
                warm(&mut self.loops, "1000")
            }
            GuestLoad::Latency { probe, .. } => self.peers.prepare_latency(*probe),
            GuestLoad::Conservation { .. } => self.peers.prepare_conservation(),
            GuestLoad::Peers { workload } => self.peers.prepare(*workload),
            GuestLoad::Seats { .. }
            | GuestLoad::Overhead { .. }
            | GuestLoad::OverheadSmt { .. } => Ok(()),
        }
    }

    fn measure(
        &mut self,
        load: &GuestLoad,
        mut sample: Sample,
        plan: &GuestPlan,
    ) -> Result<Sample> {
        match load {
            GuestLoad::Spaces { work_ms, .. } => {
                let line = self.steps(*work_ms).to_string();
                let workers = &mut self.workers[..sample.programs];
                beside_a_sleeper(&mut sample, self.steps_a_ms, workers, &line, plan)?;
            }
            GuestLoad::Mix { .. } => {
                beside_a_sleeper(&mut sample, self.steps_a_ms, &mut self.mix, "go", plan)?;
            }
            GuestLoad::Erlang { sleeper: true, .. } => {
                let vms = &mut self.vms[..sample.programs];
                beside_a_sleeper(&mut sample, self.steps_a_ms, vms, "go", plan)?;
            }
            GuestLoad::Erlang { .. } => {
                let lines = vec!["go".to_owned(); sample.programs];
                let meter = SwitchCounter::start(&plan.usher)?;
                let ends_s = programs::run(&mut self.vms[..sample.programs], &lines);
                sample.counted = Some(meter.finish()?);
                sample.ends_s = ends_s?;
            }
            GuestLoad::Cores {
                times,
                short_ms,
                long_ms,
            } => {
                let loops = [self.steps(*short_ms), self.steps(*long_ms)];
                self.short_and_long(&mut sample, *times, loops, plan)?;
            }
            GuestLoad::Seats { rounds, work_us } => {
                let load = seated::SeatLoad {
                    steps: (self.steps_a_ms * *work_us as f64 / 1e3) as u64,
                    rounds: *rounds,
                };
                seated::measure(&plan.usher, &load, &mut sample)?;
            }
            GuestLoad::ForkStorm { at_once, work_ms } => {
                self.beside_a_storm(&mut sample, *at_once, *work_ms)?;
            }
            GuestLoad::Latency { probe, beside, ms } => {
                let time = Duration::from_millis(*ms);
                self.peers.latency(*probe, *beside, time, &mut sample)?;
            }
            GuestLoad::Conservation { ms } => {
                let time = Duration::from_millis(*ms);
                self.peers.conserve(time, &mut sample)?;
            }
            GuestLoad::Peers { workload } => {
                self.peers.measure(*workload, &mut sample, &plan.usher)?;
            }
            GuestLoad::Overhead { ms } | GuestLoad::OverheadSmt { ms, .. } => {
                let time = Duration::from_millis(*ms);
                let mut note = |name: &str, ns: Result<f64>| -> Result<()> {
                    sample.figures.insert(name.to_owned(), ns?);
                    Ok(())
                };
                note(TURN_ALONE, turns::alone(time))?;
                note(TURN_OF_THREADS, turns::between_threads(NO_MEMORY, time))?;
                note(TURN_OF_PROCESSES, turns::between_processes(NO_MEMORY, time))?;
            }
        }
        Ok(sample)
    }

    /// Runs the loops alone, then beside `at_once` threads that start one short program after
    /// another.
    fn beside_a_storm(&mut self, sample: &mut Sample, at_once: usize, work_ms: u64) -> Result<()> {
        let lines = vec![self.steps(work_ms).to_string(); LOOPS];
        let loops = &mut self.loops;
        let alone_s = programs::run(loops, &lines)?.into_iter().reduce(f64::max);
        let alone_s = alone_s.context("no loop ran")?;
        let (ends_s, forked) = programs::beside_a_storm(at_once, || programs::run(loops, &lines))?;
        let figures = [(ALONE_S, alone_s), (FORKED, forked as f64)];
        let figures = figures.map(|(name, value)| (name.to_owned(), value));
        sample.figures.extend(figures);
        sample.ends_s = ends_s;
        Ok(())
    }

    /// Runs the four loops `times` times. Two loops execute `short` steps and two execute `long`
    /// steps.
    fn short_and_long(
        &mut self,
        sample: &mut Sample,
        times: usize,
        [short, long]: [u64; 2],
        plan: &GuestPlan,
    ) -> Result<()> {
        let meter = SwitchCounter::start(&plan.usher)?;
        for two in SHORT.iter().cycle().take(times) {
            let steps = |at| if two.contains(&at) { short } else { long };
            let lines: Vec<String> = (0..LOOPS).map(|at| steps(at).to_string()).collect();
            let ends_s = programs::run(&mut self.loops, &lines)?;
            sample.ends_s.extend(ends_s.into_iter().reduce(f64::max));
        }
        sample.counted = Some(meter.finish()?);
        Ok(())
    }
}

/// Lets all programs work on the input `line` beside a thread that mostly sleeps.
fn beside_a_sleeper(
    sample: &mut Sample,
    steps_a_ms: f64,
    all: &mut [Program],
    line: &str,
    plan: &GuestPlan,
) -> Result<()> {
    let lines = vec![line.to_owned(); all.len()];
    let meter = SwitchCounter::start(&plan.usher)?;
    let work = || programs::run(all, &lines);
    let (ends_s, late_ms) = programs::beside_a_sleeper(steps_a_ms, work);
    sample.counted = Some(meter.finish()?);
    sample.ends_s = ends_s?;
    sample.late_ms = late_ms;
    Ok(())
}

/// Working set of the partners in bytes; 0 means that they write to no memory.
const NO_MEMORY: usize = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_without_a_program_is_refused() {
        let erlang = GuestLoad::Erlang {
            vms: vec![4, 7],
            command: vec![],
            environment: BTreeMap::new(),
            sleeper: true,
            of_peers: false,
        };
        let mut workloads = Workloads::default();
        assert!(workloads.prepare(&erlang).is_err(), "there is no command");
    }
}
