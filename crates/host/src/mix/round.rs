// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs one round of a mix: all programs together under one policy.
//!
//! 1. Launch and hold all programs.
//! 2. Start all programs at the same time.
//! 3. When a program ends, record its repetition and start the program again at once.
//! 4. When all programs have completed the required number of repetitions, end the round.
//!    Repetitions in progress are killed and do not count. Therefore each counted repetition ran at
//!    the same time as all other programs.
//!
//! A round fails if a program fails or exceeds the time limit of a repetition (`timeout_seconds`),
//! or if the user cancels. Both limits are checked every 200 ms. Nothing is retried, and a failure
//! ends the mix. The round has no time limit of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use usher_heartbeat::Page;
use usher_model::{CpuSet, ProgramId, ProgressSource};
use usher_report::data::{ProgramFacts, ProgramRound, RoundResult, SeatSpan, SpanMode};

use super::error::MixError;
use super::file::{MixFile, MixProgram};
use super::options::MixEvent;
use super::schedule::PolicyArm;
use super::timeline::{RoundWindow, left_to_the_kernel, notes, spans};
use crate::engine::{AdoptOptions, Engine, EngineConfig, now_ns};
use crate::launch::{Repetition, Stream};
use crate::measured::{MeasuredProcess, RunCondition, RunError, wait_readable};
use crate::quiet::LoadGuard;

/// The progress source "repetition" with full confidence. The policy always gets this source, in
/// addition to other sources.
const REPETITIONS: [(ProgressSource, f64); 1] = [(ProgressSource::Repetition, 1.0)];

/// The context of a round.
pub(super) struct RoundContext<'a> {
    pub mix: &'a MixFile,
    pub facts: &'a [ProgramFacts],
    pub arm: &'a PolicyArm,
    /// Number of the round, from 1.
    pub round: u32,
    pub repeats: u32,
    /// Directory for standard error and heartbeat pages.
    pub scratch: &'a Path,
    pub ompt: Option<&'a Path>,
    pub cancel: &'a AtomicBool,
    pub usable: CpuSet,
}

/// A running program of the mix.
struct RunningProgram<'a> {
    program: &'a MixProgram,
    process: MeasuredProcess,
    seconds: Vec<f64>,
    began: Instant,
}

impl RoundContext<'_> {
    /// Runs the round by the steps in the header of this file. Returns the times of the repetitions
    /// and the timeline, or why the round must be repeated.
    pub fn run(
        &self,
        config: Option<EngineConfig>,
        guard: &mut LoadGuard,
        on_event: &mut dyn FnMut(MixEvent<'_>),
    ) -> Result<Result<RoundResult, String>, MixError> {
        let engine = config.map(|config| self.engine(config)).transpose()?;
        let mut programs = Vec::new();
        for (at, program) in self.mix.programs.iter().enumerate() {
            programs.push(self.launch(at, program, engine.as_ref())?);
        }
        let before = guard.begin()?;
        let start_ns = now_ns();
        for running in &mut programs {
            running.process.start()?;
            running.began = Instant::now();
        }
        self.run_repetitions(&mut programs, engine.as_ref(), on_event)?;
        let window = RoundWindow {
            start_ns,
            end_ns: now_ns(),
        };
        // The check precedes the end of `programs`, which kills running repetitions.
        if let Some(reason) = guard.end(before.as_ref())? {
            return Ok(Err(reason));
        }
        Ok(Ok(self.result(&programs, engine.as_ref(), window)?))
    }

    fn condition(&self) -> RunCondition {
        RunCondition::Policy(self.arm.name.clone())
    }

    fn engine(&self, config: EngineConfig) -> Result<Engine, MixError> {
        let name = self.arm.policy.as_deref().unwrap_or_default();
        let policy = usher_policy::by_name(name, &config.topology);
        let policy = policy.ok_or_else(|| MixError::Policy {
            name: self.arm.name.clone(),
        })?;
        Ok(Engine::start(config, policy).map_err(RunError::from)?)
    }

    fn launch<'p>(
        &self,
        at: usize,
        program: &'p MixProgram,
        engine: Option<&Engine>,
    ) -> Result<RunningProgram<'p>, RunError> {
        let new_session = !self.mix.protocol.one_session;
        let mut spec = program.spec(&self.mix.dir, Stream::Null, new_session);
        let mut adopt = AdoptOptions::new(&program.argv).named(&program.name);
        adopt.cwd = std::path::absolute(&self.mix.dir).ok();
        adopt.weight = program.weight;
        adopt.env = (program.env.iter())
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let file_stem = format!("{}-{}-{at}", self.arm.name, self.round);
        if engine.is_some() {
            let page = self.scratch.join(format!("{file_stem}.heartbeat"));
            Page::create(&page).map_err(|error| RunError::System {
                doing: "creating a heartbeat page",
                source: std::io::Error::other(error.to_string()),
            })?;
            spec = spec.heartbeat(&page);
            if let Some(library) = self.ompt {
                spec = spec.ompt_tool(library);
            }
            adopt.heartbeat = Some(page);
        }
        let stderr = self.scratch.join(format!("{file_stem}.stderr"));
        Ok(RunningProgram {
            process: MeasuredProcess::launch(engine.map(|engine| &**engine), spec, adopt, &stderr)?,
            program,
            seconds: Vec::new(),
            began: Instant::now(),
        })
    }

    fn run_repetitions(
        &self,
        programs: &mut [RunningProgram<'_>],
        engine: Option<&Engine>,
        on_event: &mut dyn FnMut(MixEvent<'_>),
    ) -> Result<(), RunError> {
        let enough = |running: &RunningProgram<'_>| running.seconds.len() >= self.repeats as usize;
        while !programs.iter().all(enough) {
            let fds: Vec<_> = programs.iter().map(|p| p.process.report_fd()).collect();
            let ended = wait_readable(&fds, self.cancel)?;
            drop(fds);
            for at in ended {
                let running = &mut programs[at];
                let repetition = running.process.finish()?;
                self.check(running, &repetition)?;
                running.seconds.push(repetition.seconds());
                on_event(MixEvent::Repetition {
                    policy: &self.arm.name,
                    program: &running.program.name,
                    done: running.seconds.len() as u32,
                    of: self.repeats,
                    seconds: repetition.seconds(),
                });
                if let (Some(engine), Some(id)) = (engine, running.process.id()) {
                    engine.repeated(id, repetition.seconds(), 0)?;
                }
                if !programs.iter().all(enough) {
                    programs[at].process.start()?;
                    programs[at].began = Instant::now();
                }
            }
            self.check_timeout(programs)?;
        }
        Ok(())
    }

    fn check(&self, running: &RunningProgram<'_>, repetition: &Repetition) -> Result<(), RunError> {
        let ok = &running.program.ok_exit_codes;
        match repetition
            .exit
            .status
            .is_some_and(|status| ok.contains(&status))
        {
            true => Ok(()),
            false => Err(RunError::Failed {
                name: running.program.name.clone(),
                exit: repetition.exit,
                condition: self.condition(),
                stderr: running.process.stderr_tail(),
            }),
        }
    }

    fn check_timeout(&self, programs: &[RunningProgram<'_>]) -> Result<(), RunError> {
        let seconds = self.mix.protocol.timeout_seconds;
        let timeout = Duration::from_secs_f64(seconds);
        match programs.iter().find(|p| p.began.elapsed() > timeout) {
            Some(running) => Err(RunError::TimedOut {
                name: running.program.name.clone(),
                condition: self.condition(),
                seconds,
            }),
            None => Ok(()),
        }
    }

    fn result(
        &self,
        programs: &[RunningProgram<'_>],
        engine: Option<&Engine>,
        window: RoundWindow,
    ) -> Result<RoundResult, RunError> {
        let status = engine.map(|engine| engine.status()).transpose()?;
        let log = engine.map(|engine| engine.log(0)).transpose()?;
        let log = log.map_or_else(Vec::new, |(entries, _)| entries);
        let acts = self.arm.policy.as_deref().is_some_and(|p| p != "linux");
        let reads_progress = acts && self.arm.policy.as_deref() != Some("equal");
        let of = |running: &RunningProgram<'_>| {
            let programs = status.iter().flat_map(|status| &status.programs);
            let mut own = programs.filter(|p| Some(p.id) == running.process.id());
            let sampled = own.next().and_then(|p| p.progress);
            let sampled = sampled.map(|p| (p.source, p.confidence));
            // The minimum is the best source, because sources are ordered by rising inaccuracy.
            let progress = sampled.into_iter().chain(REPETITIONS);
            let progress = progress.min_by_key(|p| p.0).filter(|_| reads_progress);
            ProgramRound {
                name: running.program.name.clone(),
                ntt: None,
                seconds: running.seconds.clone(),
                reps: running.seconds.len() as u32,
                progress_source: progress.map(|p| p.0),
                confidence: progress.map(|p| p.1),
                failure: None,
            }
        };
        let mut round = RoundResult::new(self.facts, programs.iter().map(of).collect());
        let names: BTreeMap<ProgramId, String> = (programs.iter())
            .filter_map(|p| Some((p.process.id()?, p.program.name.clone())))
            .collect();
        round.timeline = match engine {
            Some(_) => spans(&log, &names, window),
            None => self.unmanaged_timeline(window),
        };
        round.notes = notes(&log, &names, window);
        round.abstained = acts && left_to_the_kernel(&log, window);
        if round.abstained {
            round.abstained_because = round.notes.last().map(|(_, text)| text.clone());
        }
        Ok(round)
    }

    /// Returns the timeline of programs that run without an engine.
    fn unmanaged_timeline(&self, window: RoundWindow) -> Vec<SeatSpan> {
        let span = |program: &MixProgram| SeatSpan {
            program: program.name.clone(),
            start_s: 0.0,
            end_s: window.seconds(window.end_ns),
            cpus: self.usable.clone(),
            mode: SpanMode::Shared,
            borrowed_from: None,
        };
        self.mix.programs.iter().map(span).collect()
    }
}
