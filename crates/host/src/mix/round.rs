// SPDX-License-Identifier: MIT OR Apache-2.0
//! One round of one arm.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use usher_heartbeat::Page;
use usher_model::{CpuSet, ProgramId, ProgressSource};
use usher_report::data::{ProgramFacts, ProgramRound, RoundResult, SeatSpan, SpanMode};

use super::MixEvent;
use super::file::{MixFile, MixProgram};
use super::schedule::Arm;
use super::timeline::{Window, left_to_the_kernel, notes, spans};
use crate::cast::{Cast, wait_readable};
use crate::engine::{Adopt, Engine, EngineConfig, now_ns};
use crate::error::MeasureError;
use crate::launch::{Repetition, Stream};

/// Every repetition is told to the policy, whatever else it can see.
const REPETITIONS: [(ProgressSource, f64); 1] = [(ProgressSource::Repetition, 1.0)];

/// What a round is run with.
pub(super) struct Stage<'a> {
    pub mix: &'a MixFile,
    pub facts: &'a [ProgramFacts],
    pub arm: &'a Arm,
    /// From 1.
    pub round: u32,
    pub repeats: u32,
    /// A folder for what programs say and for heartbeat pages.
    pub scratch: &'a Path,
    pub ompt: Option<&'a Path>,
    pub cancel: &'a AtomicBool,
    pub usable: CpuSet,
}

/// A program on stage.
struct Player<'a> {
    program: &'a MixProgram,
    cast: Cast,
    seconds: Vec<f64>,
    began: Instant,
}

impl Stage<'_> {
    /// Runs the round. The programs are launched and held first, then all are
    /// started together; each is started again as soon as it has ended, until
    /// every one has completed `repeats` repetitions. Repetitions under way at
    /// that moment are killed and do not count, so that every one that counts
    /// ran while all programs ran.
    pub fn run(
        &self,
        config: Option<EngineConfig>,
        tell: &mut dyn FnMut(MixEvent<'_>),
    ) -> Result<RoundResult, MeasureError> {
        let engine = config.map(|config| self.engine(config)).transpose()?;
        let mut players = Vec::new();
        for (at, program) in self.mix.programs.iter().enumerate() {
            players.push(self.enter(at, program, engine.as_ref())?);
        }
        let start_ns = now_ns();
        for player in &mut players {
            player.cast.start()?;
            player.began = Instant::now();
        }
        self.play(&mut players, engine.as_ref(), tell)?;
        let window = Window {
            start_ns,
            end_ns: now_ns(),
        };
        self.result(&players, engine.as_ref(), window)
    }

    fn engine(&self, config: EngineConfig) -> Result<Engine, MeasureError> {
        let name = self.arm.policy.as_deref().unwrap_or_default();
        let policy = usher_policy::by_name(name, &config.topology);
        let policy = policy.ok_or_else(|| MeasureError::Policy {
            name: self.arm.name.clone(),
        })?;
        Ok(Engine::start(config, policy)?)
    }

    fn enter<'p>(
        &self,
        at: usize,
        program: &'p MixProgram,
        engine: Option<&Engine>,
    ) -> Result<Player<'p>, MeasureError> {
        let new_session = !self.mix.protocol.one_session;
        let mut spec = program.spec(&self.mix.dir, Stream::Null, new_session);
        let mut adopt = Adopt::new(&program.argv).named(&program.name);
        adopt.cwd = std::path::absolute(&self.mix.dir).ok();
        adopt.weight = program.weight;
        adopt.env = (program.env.iter())
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let scene = format!("{}-{}-{at}", self.arm.name, self.round);
        if engine.is_some() {
            let page = self.scratch.join(format!("{scene}.heartbeat"));
            Page::create(&page).map_err(|error| MeasureError::System {
                doing: "making a heartbeat page",
                source: std::io::Error::other(error.to_string()),
            })?;
            spec = spec.heartbeat(&page);
            if let Some(library) = self.ompt {
                spec = spec.ompt_tool(library);
            }
            adopt.heartbeat = Some(page);
        }
        let stderr = self.scratch.join(format!("{scene}.stderr"));
        Ok(Player {
            cast: Cast::launch(engine.map(|engine| &**engine), spec, adopt, &stderr)?,
            program,
            seconds: Vec::new(),
            began: Instant::now(),
        })
    }

    fn play(
        &self,
        players: &mut [Player<'_>],
        engine: Option<&Engine>,
        tell: &mut dyn FnMut(MixEvent<'_>),
    ) -> Result<(), MeasureError> {
        let enough = |player: &Player<'_>| player.seconds.len() >= self.repeats as usize;
        while !players.iter().all(enough) {
            let fds: Vec<_> = players.iter().map(|p| p.cast.report_fd()).collect();
            let ended = wait_readable(&fds, self.cancel)?;
            drop(fds);
            for at in ended {
                let player = &mut players[at];
                let repetition = player.cast.finish()?;
                self.check(player, &repetition)?;
                player.seconds.push(repetition.seconds());
                tell(MixEvent::Repetition {
                    policy: &self.arm.name,
                    program: &player.program.name,
                    done: player.seconds.len() as u32,
                    of: self.repeats,
                    seconds: repetition.seconds(),
                });
                if let (Some(engine), Some(id)) = (engine, player.cast.id()) {
                    engine.repeated(id, repetition.seconds(), 0)?;
                }
                if !players.iter().all(enough) {
                    players[at].cast.start()?;
                    players[at].began = Instant::now();
                }
            }
            self.check_patience(players)?;
        }
        Ok(())
    }

    fn check(&self, player: &Player<'_>, repetition: &Repetition) -> Result<(), MeasureError> {
        let ok = &player.program.ok_status;
        match repetition
            .exit
            .status
            .is_some_and(|status| ok.contains(&status))
        {
            true => Ok(()),
            false => Err(MeasureError::Died {
                name: player.program.name.clone(),
                exit: repetition.exit,
                policy: self.arm.name.clone(),
                stderr: player.cast.last_words(),
            }),
        }
    }

    fn check_patience(&self, players: &[Player<'_>]) -> Result<(), MeasureError> {
        let seconds = self.mix.protocol.patience_seconds;
        let patience = Duration::from_secs_f64(seconds);
        match players.iter().find(|p| p.began.elapsed() > patience) {
            Some(player) => Err(MeasureError::Hangs {
                name: player.program.name.clone(),
                policy: self.arm.name.clone(),
                seconds,
            }),
            None => Ok(()),
        }
    }

    fn result(
        &self,
        players: &[Player<'_>],
        engine: Option<&Engine>,
        window: Window,
    ) -> Result<RoundResult, MeasureError> {
        let status = engine.map(|engine| engine.status()).transpose()?;
        let log = engine.map(|engine| engine.log(0)).transpose()?;
        let log = log.map_or_else(Vec::new, |(entries, _)| entries);
        let acts = self.arm.policy.as_deref().is_some_and(|p| p != "linux");
        let looks = acts && self.arm.policy.as_deref() != Some("equal");
        let of = |player: &Player<'_>| {
            let programs = status.iter().flat_map(|status| &status.programs);
            let mut own = programs.filter(|p| Some(p.id) == player.cast.id());
            let sampled = own.next().and_then(|p| p.progress);
            let sampled = sampled.map(|p| (p.source, p.confidence));
            // Sources are ordered, best first.
            let progress = sampled.into_iter().chain(REPETITIONS);
            let progress = progress.min_by_key(|p| p.0).filter(|_| looks);
            ProgramRound {
                name: player.program.name.clone(),
                ntt: None,
                seconds: player.seconds.clone(),
                reps: player.seconds.len() as u32,
                progress_source: progress.map(|p| p.0),
                confidence: progress.map(|p| p.1),
                failure: None,
            }
        };
        let mut round = RoundResult::new(self.facts, players.iter().map(of).collect());
        let names: BTreeMap<ProgramId, String> = (players.iter())
            .filter_map(|p| Some((p.cast.id()?, p.program.name.clone())))
            .collect();
        round.timeline = match engine {
            Some(_) => spans(&log, &names, window),
            None => self.everywhere(window),
        };
        round.notes = notes(&log, &names, window);
        round.abstained = acts && left_to_the_kernel(&log, window);
        if round.abstained {
            round.abstained_because = round.notes.last().map(|(_, text)| text.clone());
        }
        Ok(round)
    }

    /// The timeline of programs that nobody manages.
    fn everywhere(&self, window: Window) -> Vec<SeatSpan> {
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
