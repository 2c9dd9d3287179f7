// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a guest of the lab (a virtual machine, crate `usher-lab`) for a plan of measurements, and
//! records the messages that it prints.
//!
//! A plan is a list of turns. A turn consists of a scheduler, the loads that run under the
//! scheduler, and the numbers of the rounds. The guest runs the hidden command `usher-bench
//! sched-inside PLAN` (`inside`) and prints one JSON line per message (`messages`): a sample, the
//! end of a load, or a load that was left out.
//!
//! 1. Read `NAME.jsonl` in the folder of results if an earlier run wrote the file; NAME is the name
//!    of the guest machine.
//! 2. Remove from the messages the samples of each load that did not complete under a scheduler.
//!    Remove from the plan the loads that are complete or were left out.
//! 3. Start the guest with the remaining plan, and append each line to the file when it arrives. An
//!    interrupted run can therefore be resumed.
//! 4. If the guest dies, repeat from step 1, once. A guest that fails or exceeds its time limit
//!    ends the run with an error.
//!
//! Limits: a guest may run for 6 hours per start. The samples describe the emulated machine. In its
//! virtual time, each instruction takes 1 ns and caches have no effect.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use usher_lab::kernels::KernelChoice;
use usher_lab::{Clock, GuestEnd, IdleTime, Streams, Vm};
use usher_model::CpuSet;

use super::inside;
use super::messages::{GuestLoad, GuestMessage, GuestPlan, Sample, SchedulerPlan};
use super::progress::RunProgress;

/// Time limit of a guest; sufficient even on a host with other load.
const TIMEOUT: Duration = Duration::from_secs(6 * 3600);
/// Number of times that a guest is started if it dies.
const ATTEMPTS: usize = 2;
/// Time of an instruction in virtual time, in nanoseconds.
pub const INSTRUCTION_NS: u32 = 1;
/// Virtual time: the guest's clock counts instructions. While all CPUs are idle, it jumps to the
/// next timer.
pub const VIRTUAL: Clock = Clock::Instructions {
    ns: INSTRUCTION_NS,
    idle: IdleTime::Skipped,
};
/// Lines of a guest's console that are shown when it has died.
const CONSOLE_LINES: usize = 12;

/// A virtual machine on which loads run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestMachine {
    /// Name of the machine, and of the file with its messages.
    pub name: &'static str,
    /// Topology of the machine in the syntax of the lab.
    pub topology: &'static str,
    /// List of the CPUs that the guest takes offline; empty: all CPUs are online.
    pub cpus_off: &'static str,
    /// Additional kernel parameters.
    pub append: &'static str,
    /// The guest's clock.
    pub clock: Clock,
}

/// Returns the cache folder of the lab from the environment; `None`: the user's default folder.
pub fn cache() -> Option<PathBuf> {
    std::env::var_os("USHER_LAB_CACHE").map(PathBuf::from)
}

/// Settings of all guests.
#[derive(Debug)]
pub struct Lab {
    /// The kernel that the guests run.
    pub kernel: KernelChoice,
    /// The `usher` that is measured.
    pub usher: PathBuf,
    /// Folder for the results of the run.
    pub folder: PathBuf,
}

/// Complete samples of a machine, and notes about loads that could not be measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GuestResults {
    /// Samples in the order in which they were measured.
    pub samples: Vec<Sample>,
    /// Notes: for each scheduler that was left out of a part, the part, the scheduler and the
    /// reason.
    pub left_out: Vec<String>,
}

impl GuestResults {
    /// Selects the samples of complete loads. A load is complete if a message `Done` contains its
    /// part, scheduler and round.
    fn of(messages: &[GuestMessage]) -> Self {
        let mut measured = Self::default();
        for line in messages {
            let (part, scheduler, rounds) = match line {
                GuestMessage::Sample(_) => continue,
                GuestMessage::Done {
                    part,
                    scheduler,
                    rounds,
                } => (part, scheduler, rounds),
                GuestMessage::LeftOut {
                    part,
                    scheduler,
                    why,
                    ..
                } => {
                    let note = format!(
                        "{part}: the scheduler {} is left out: {why}",
                        scheduler.label()
                    );
                    // Several rounds may fail for the same reason.
                    if !measured.left_out.contains(&note) {
                        measured.left_out.push(note);
                    }
                    continue;
                }
            };
            let of_it = messages.iter().filter_map(|line| match line {
                GuestMessage::Sample(sample) => Some(sample),
                _ => None,
            });
            let of_it = of_it.filter(|sample| {
                (&sample.part, &sample.scheduler) == (part, scheduler)
                    && rounds.contains(&sample.round)
            });
            measured
                .samples
                .extend(of_it.map(|sample| (**sample).clone()));
        }
        measured
    }
}

/// Returns the plan without the loads that, according to the messages, are complete or were left
/// out.
fn remaining(turns: &[SchedulerPlan], messages: &[GuestMessage]) -> Vec<SchedulerPlan> {
    let is_over = |turn: &SchedulerPlan, load: &GuestLoad| {
        messages.iter().any(|line| match line {
            GuestMessage::Sample(_) => false,
            GuestMessage::Done {
                part,
                scheduler,
                rounds,
            } => part == load.part() && *scheduler == turn.scheduler && *rounds == turn.rounds,
            GuestMessage::LeftOut {
                part,
                scheduler,
                rounds,
                ..
            } => {
                let is_of_turn = rounds.is_empty() || *rounds == turn.rounds;
                part == load.part() && *scheduler == turn.scheduler && is_of_turn
            }
        })
    };
    let mut left = turns.to_vec();
    for turn in &mut left {
        let all = std::mem::take(&mut turn.loads);
        let open = all.into_iter().filter(|load| !is_over(turn, load));
        turn.loads = open.collect();
    }
    left.retain(|turn| !turn.loads.is_empty());
    left
}

/// Reads the messages of a file, without the samples of incomplete loads. Returns an empty list if
/// the file does not exist.
fn saved(file: &Path) -> Result<Vec<GuestMessage>> {
    let all = match fs::read_to_string(file) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        all => all.with_context(|| format!("reading {}", file.display()))?,
    };
    let lines: Vec<GuestMessage> = all
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let finished = GuestResults::of(&lines).samples;
    let is_finished = |line: &GuestMessage| match line {
        GuestMessage::Sample(sample) => finished.contains(sample),
        GuestMessage::Done { .. } | GuestMessage::LeftOut { .. } => true,
    };
    Ok(lines.into_iter().filter(is_finished).collect())
}

impl Lab {
    fn vm(&self, machine: &GuestMachine) -> Result<Vm> {
        let cpus_off: CpuSet = machine.cpus_off.parse().context("reading a set of CPUs")?;
        Ok(Vm {
            kernel: self.kernel.clone(),
            clock: machine.clock,
            cpus_off,
            environment: vec![("USHER_RUNTIME_DIR".to_owned(), "/run/usher".to_owned())],
            timeout: TIMEOUT,
            append: machine.append.to_owned(),
            cache: cache(),
            ..Vm::new(machine.topology)?
        })
    }

    /// Downloads missing files of the guest. Returns the release of the kernel.
    ///
    /// # Errors
    /// Guests cannot be started on this host; the error names the missing program and its remedy.
    pub fn ready(&self, machine: &GuestMachine) -> Result<String> {
        self.vm(machine)?
            .ready()
            .context("no guest can be started ('--only switches' needs no guest)")
    }

    fn file(&self, machine: &GuestMachine) -> PathBuf {
        self.folder.join(format!("{}.jsonl", machine.name))
    }

    /// Returns the turns that are still to be measured on a machine.
    pub fn left(
        &self,
        machine: &GuestMachine,
        turns: &[SchedulerPlan],
    ) -> Result<Vec<SchedulerPlan>> {
        Ok(remaining(turns, &saved(&self.file(machine))?))
    }

    /// Measures the remaining turns on a machine. Returns the samples of all turns, including those
    /// of earlier runs.
    ///
    /// # Errors
    /// The guest cannot be started, fails, dies twice or exceeds its time limit.
    pub fn measure(
        &self,
        machine: &GuestMachine,
        turns: &[SchedulerPlan],
        pace: &mut RunProgress,
    ) -> Result<GuestResults> {
        let file = self.file(machine);
        let mut messages = saved(&file)?;
        for attempt in 0..ATTEMPTS {
            let left = remaining(turns, &messages);
            if left.is_empty() {
                break;
            }
            eprintln!(
                "sched: starting a guest with the topology {}",
                machine.topology
            );
            pace.starts(machine.name);
            let mut lines = OutputRecorder::new(&file, messages, pace)?;
            match self.guest(machine, left, &mut lines)? {
                GuestEnd::Exited { status: 0 } => {}
                GuestEnd::Died if attempt + 1 < ATTEMPTS => {
                    eprintln!("sched: the guest died; starting it once more");
                }
                end => bail!("the guest with {} {}", machine.topology, ended(&end)),
            }
            // Samples of a load that was incomplete when the guest died are measured again.
            messages = saved(&file)?;
        }
        Ok(GuestResults::of(&messages))
    }

    fn guest(
        &self,
        machine: &GuestMachine,
        turns: Vec<SchedulerPlan>,
        lines: &mut OutputRecorder<'_>,
    ) -> Result<GuestEnd> {
        let plan = GuestPlan {
            usher: self.usher.clone(),
            turns,
        };
        let exe = std::env::current_exe().context("finding the executable of usher-bench")?;
        let command = [
            exe.display().to_string(),
            inside::COMMAND.to_owned(),
            serde_json::to_string(&plan)?,
        ];
        let outcome = self.vm(machine)?.run(
            &command,
            &mut Streams {
                out: lines,
                err: &mut io::stderr(),
                console: None,
                interrupt: None,
            },
        )?;
        if outcome.end == GuestEnd::Died {
            let console: Vec<&str> = outcome.console.lines().collect();
            for line in &console[console.len().saturating_sub(CONSOLE_LINES)..] {
                eprintln!("  {}", line.trim_end());
            }
        }
        Ok(outcome.end)
    }
}

/// Describes as text how a guest ended that did not complete its plan.
fn ended(end: &GuestEnd) -> String {
    match end {
        GuestEnd::Exited { status } => format!("failed: its benchmark ended with {status}"),
        GuestEnd::Refused { reason, .. } => format!("could not start: {reason}"),
        GuestEnd::Died => "died more than once".to_owned(),
        GuestEnd::TimedOut => format!("was not finished within {} hours", TIMEOUT.as_secs() / 3600),
        GuestEnd::Interrupted => "was interrupted".to_owned(),
    }
}

/// Writes the messages of a guest to the file of its machine, line by line, and reports progress.
struct OutputRecorder<'a> {
    file: File,
    /// The received part of a line that is not complete yet.
    begun: Vec<u8>,
    messages: Vec<GuestMessage>,
    pace: &'a mut RunProgress,
}

impl<'a> OutputRecorder<'a> {
    /// Writes the file anew with the messages of earlier runs.
    fn new(path: &Path, messages: Vec<GuestMessage>, pace: &'a mut RunProgress) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("writing {}", path.display()))?;
        let mut lines = Self {
            file,
            begun: vec![],
            messages: vec![],
            pace,
        };
        for line in messages {
            lines.note(line)?;
        }
        Ok(lines)
    }

    fn note(&mut self, message: GuestMessage) -> Result<()> {
        writeln!(self.file, "{}", serde_json::to_string(&message)?)?;
        self.messages.push(message);
        Ok(())
    }

    fn take(&mut self, line: &[u8]) -> io::Result<()> {
        match serde_json::from_slice(line) {
            Ok(message) => {
                self.pace.note(&message, Instant::now());
                if let Some(line) = shown(&message) {
                    eprintln!("  {:<11}{line}{}", self.pace.number(), self.pace.left());
                }
                self.note(message).map_err(io::Error::other)
            }
            // A line that is not JSON is an error message of the guest.
            Err(_) => {
                eprintln!("sched: {}", String::from_utf8_lossy(line).trim_end());
                Ok(())
            }
        }
    }
}

impl Write for OutputRecorder<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begun.extend_from_slice(bytes);
        while let Some(at) = self.begun.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.begun.drain(..=at).collect();
            self.take(&line)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Returns the line that reports a sample as progress.
fn shown(message: &GuestMessage) -> Option<String> {
    match message {
        GuestMessage::Sample(sample) => {
            let Sample {
                part,
                scheduler,
                programs,
                round,
                ..
            } = &**sample;
            let label = scheduler.label();
            Some(format!(
                "  {part:<14} {label:<24} {programs} programs, round {}",
                round + 1
            ))
        }
        GuestMessage::Done { .. } => None,
        GuestMessage::LeftOut {
            part,
            scheduler,
            rounds,
            why,
        } => {
            let label = scheduler.label();
            let numbers: Vec<String> = rounds.iter().map(|round| (round + 1).to_string()).collect();
            let rounds = match numbers.len() {
                0 => String::new(),
                1 => format!(", round {}", numbers[0]),
                _ => format!(", rounds {}", numbers.join(", ")),
            };
            Some(format!("  {part:<14} {label:<24} left out{rounds}: {why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::messages::SwitchCounts;
    use crate::sched::schedulers::ComparedScheduler;

    fn sample(part: &str, scheduler: ComparedScheduler) -> GuestMessage {
        GuestMessage::Sample(Box::new(Sample {
            part: part.to_owned(),
            scheduler,
            programs: 2,
            round: 0,
            counted: Some(SwitchCounts::default()),
            ends_s: vec![],
            late_ms: vec![],
            figures: Default::default(),
        }))
    }

    fn done(part: &str, scheduler: ComparedScheduler) -> GuestMessage {
        let (part, rounds) = (part.to_owned(), vec![0]);
        GuestMessage::Done {
            part,
            scheduler,
            rounds,
        }
    }

    fn turn(scheduler: ComparedScheduler) -> SchedulerPlan {
        let cores = GuestLoad::Cores {
            times: 1,
            short_ms: 1,
            long_ms: 2,
        };
        let loads = vec![GuestLoad::Overhead { ms: 1 }, cores];
        let rounds = vec![0];
        SchedulerPlan {
            scheduler,
            rounds,
            loads,
        }
    }

    #[test]
    fn finished_samples_are_not_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("one.jsonl");
        assert!(saved(&file).unwrap().is_empty());
        let mut pace = RunProgress::default();
        let mut lines = OutputRecorder::new(&file, vec![], &mut pace).unwrap();
        let kept = [
            sample("overhead", ComparedScheduler::Eevdf),
            done("overhead", ComparedScheduler::Eevdf),
        ];
        let lost = sample("cores", ComparedScheduler::Eevdf);
        for message in kept.iter().chain([&lost]) {
            // The line arrives in pieces, as from a pipe.
            let line = format!("{}\n", serde_json::to_string(message).unwrap());
            let (begin, end) = line.split_at(line.len() / 2);
            lines.write_all(begin.as_bytes()).unwrap();
            lines.write_all(end.as_bytes()).unwrap();
        }
        assert_eq!(lines.messages.len(), 3);
        lines.write_all(b"something else\n").unwrap();
        drop(lines);

        let messages = saved(&file).unwrap();
        assert_eq!(messages, kept);
        let turns = [
            turn(ComparedScheduler::Eevdf),
            turn(ComparedScheduler::Fifo),
        ];
        let left = remaining(&turns, &messages);
        assert_eq!(left[0].loads, turns[0].loads[1..]);
        assert_eq!(left[1], turns[1]);
        let all: Vec<GuestMessage> = ["overhead", "cores"]
            .into_iter()
            .flat_map(|part| {
                [
                    done(part, ComparedScheduler::Eevdf),
                    done(part, ComparedScheduler::Fifo),
                ]
            })
            .collect();
        assert!(remaining(&turns, &all).is_empty());
        // Round 1 of the same load and scheduler was not measured, and therefore remains.
        let again = SchedulerPlan {
            rounds: vec![1],
            ..turn(ComparedScheduler::Eevdf)
        };
        assert_eq!(remaining(std::slice::from_ref(&again), &all), [again]);
    }

    #[test]
    fn a_failed_scheduler_is_reported_and_not_counted() {
        let why = "the kernel ended the scheduler".to_owned();
        let part = "cores".to_owned();
        let scheduler = ComparedScheduler::Fifo;
        let left_out = |rounds: &[usize]| GuestMessage::LeftOut {
            part: part.clone(),
            scheduler: scheduler.clone(),
            rounds: rounds.to_vec(),
            why: why.clone(),
        };
        let twice = [left_out(&[0]), left_out(&[1])];
        let lines = [&[sample("cores", ComparedScheduler::Fifo)], &twice[..]].concat();
        let measured = GuestResults::of(&lines);
        assert!(measured.samples.is_empty());
        assert_eq!(
            measured.left_out,
            ["cores: the scheduler usher --fifo is left out: the kernel ended the scheduler"]
        );
        assert_eq!(
            [&[1][..], &[0, 1]].map(|rounds| shown(&left_out(rounds)).unwrap()),
            [
                "  cores          usher --fifo             left out, round 2: the kernel ended the scheduler",
                "  cores          usher --fifo             left out, rounds 1, 2: the kernel ended the scheduler"
            ]
        );
    }

    #[test]
    fn a_load_left_out_of_a_round_is_tried_in_other_rounds() {
        let of_older = r#"{"left_out":{"part":"cores","rival":"fifo","why":"x"}}"#;
        let all: GuestMessage = serde_json::from_str(of_older).unwrap();
        let GuestMessage::LeftOut {
            part,
            scheduler,
            why,
            ..
        } = all.clone()
        else {
            unreachable!()
        };
        let rounds = vec![1];
        let second = GuestMessage::LeftOut {
            part,
            scheduler,
            rounds,
            why,
        };
        let turns = [turn(ComparedScheduler::Fifo)];
        assert_eq!(remaining(&turns, &[second]), turns);
        assert_eq!(remaining(&turns, &[all])[0].loads, turns[0].loads[..1]);
    }

    #[test]
    fn the_guests_can_be_built() {
        let lab = Lab {
            kernel: KernelChoice::Newest,
            usher: PathBuf::new(),
            folder: PathBuf::new(),
        };
        for machine in crate::sched::machines::MACHINES {
            lab.vm(&machine).unwrap();
        }
    }
}
