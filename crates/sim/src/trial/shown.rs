// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trials as the values that tables and pages are made of.

use std::collections::BTreeMap;

use serde::Serialize;
use usher_model::{ProgressSource, SeatMode};
use usher_report::data::{
    Lender, MachineFacts, MixResult, PolicyResult, ProgramFacts, ProgramRound, Protocol, Role,
    RoundResult, SeatSpan, SpanMode, antt,
};
use usher_report::stats;

use super::{Cast, Guest, Stay, Trial};
use crate::campaign::Scheduler;
use crate::kernel::{Fair, Order};
use crate::mixfile::SimMix;

/// Spans that a timeline shows at most; drawing takes the square of this.
const SPANS_MAX: usize = 1_500;
const CUT: &str = "from here on the timeline leaves most out: too much happens to be drawn";

/// What a mix gave, and what it was run with.
#[derive(Debug)]
pub struct Show<'a> {
    /// The mix.
    pub mix: &'a SimMix,
    /// Its programs on their machine.
    pub cast: &'a Cast,
    /// The command that runs this again.
    pub command: String,
    /// Schedulers with one trial a round.
    pub trials: &'a [(Scheduler, Vec<Trial>)],
}

/// What newcomers met with in one trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reception {
    /// How many came.
    pub came: usize,
    /// How many left before the run was over.
    pub left: usize,
    /// Mean of the times from coming to leaving, of those who stayed until
    /// their work was done.
    pub response_mean_s: Option<f64>,
    /// A twentieth took longer.
    pub response_p95_s: Option<f64>,
    /// Mean of the newcomers' NTTs.
    pub slowdown_mean: Option<f64>,
    /// Completions of their work a second.
    pub throughput_per_s: f64,
    /// How many were there on average.
    pub present_mean: f64,
}

impl Reception {
    /// Of a trial to which somebody came by chance.
    pub fn of(trial: &Trial, stays: bool) -> Option<Self> {
        let newcomers: Vec<&Guest> = trial.guests.iter().filter(|g| g.by_chance).collect();
        if newcomers.is_empty() {
            return None;
        }
        let left = newcomers.iter().filter_map(|g| Some(g.left_s? - g.at_s));
        let responses: Vec<f64> = left.collect();
        let ntts: Vec<f64> = newcomers.iter().filter_map(|g| g.ntt).collect();
        let there = newcomers.iter();
        let there = there.map(|g| (g.left_s.unwrap_or(trial.seconds) - g.at_s).max(0.0));
        let done: usize = newcomers.iter().map(|g| g.seconds.len()).sum();
        let of_work = Some(&responses).filter(|_| !stays);
        Some(Self {
            came: newcomers.iter().filter(|g| g.at_s <= trial.seconds).count(),
            left: responses.len(),
            response_mean_s: of_work.and_then(|all| stats::mean(all)),
            response_p95_s: of_work.and_then(|all| stats::quantile(all, 0.95)),
            slowdown_mean: stats::mean(&ntts),
            throughput_per_s: done as f64 / trial.seconds,
            present_mean: there.sum::<f64>() / trial.seconds,
        })
    }
}

impl Show<'_> {
    /// The mix as a report shows it: programs by role, copies together.
    pub fn result(&self) -> MixResult {
        let policies = self.trials.iter().enumerate();
        let mut result = MixResult {
            title: self.mix.title.clone(),
            description: self.mix.description.clone(),
            machine: self.machine(),
            simulated: true,
            protocol: self.protocol(),
            programs: self.programs(),
            policies: policies.map(|(at, p)| self.policy(at, p)).collect(),
        };
        result.compare();
        result
    }

    fn machine(&self) -> MachineFacts {
        let kernel = &self.cast.kernel;
        let fair = match (kernel.order, kernel.fair) {
            (Order::Usher, _) | (_, Fair::Threads) => "threads",
            (_, Fair::Programs) => "programs",
        };
        let ms = |ns: u64| ns as f64 / 1e6;
        let order = match kernel.order {
            Order::Eevdf => format!(
                "a model of Linux (EEVDF, turns of {} ms)",
                ms(kernel.slice_ns)
            ),
            Order::Usher if kernel.aggregate => format!(
                "Usher's scheduler in a model (slices of {} ms, turns of {} ms, a lead of {} ms)",
                ms(kernel.slice_ns),
                ms(kernel.turn_ns),
                ms(kernel.lead_ns)
            ),
            Order::Usher => format!(
                "Usher's scheduler in a model (slices of {} ms, without turns)",
                ms(kernel.slice_ns)
            ),
            Order::Cfs => format!(
                "a model of Linux (CFS, a turn for each in {} ms)",
                ms(kernel.latency_ns)
            ),
        };
        let smt = if kernel.smt_aware {
            ""
        } else {
            ", blind to hardware threads"
        };
        MachineFacts {
            host: "a machine that is not there".to_owned(),
            kernel: format!("{order}, fair between {fair}{smt}"),
            topology: self.cast.machine.topology().clone(),
            cpu_model: format!("costs of {}", self.mix.like),
            pmu: true,
            notes: vec![format!(
                "described as '{}'; costs: {}",
                self.mix.machine,
                costs(&self.mix.costs)
            )],
        }
    }

    fn protocol(&self) -> Protocol {
        let protocol = &self.mix.protocol;
        let mut notes = Vec::new();
        for (scheduler, trials) in self.trials {
            let cut = trials.iter().filter(|trial| !trial.complete).count();
            if cut > 0 {
                notes.push(format!(
                    "{}: {cut} of {} rounds ended at {} s before everybody had done what was wanted",
                    scheduler.name(),
                    trials.len(),
                    protocol.max_seconds
                ));
            }
        }
        Protocol {
            repeats_min: protocol.repetitions,
            rounds: protocol.rounds,
            interleaved: true,
            sessions: match self.cast.kernel.fair {
                Fair::Programs => "each in a session of its own".to_owned(),
                Fair::Threads => "time is shared between threads, whosever they are".to_owned(),
            },
            seed: protocol.seed,
            command: self.command.clone(),
            date: String::new(),
            notes,
        }
    }

    fn programs(&self) -> Vec<ProgramFacts> {
        let roles = self.cast.roles.iter().zip(&self.mix.programs);
        roles
            .map(|(role, program)| ProgramFacts {
                name: role.name.clone(),
                command: role.about.clone(),
                class: match (program.resident, program.copies) {
                    (false, _) => "comes by chance".to_owned(),
                    (true, 1) => String::new(),
                    (true, copies) => format!("{copies} copies"),
                },
                weight: role.weight,
                curve: Some(role.alone.clone()),
                alone_best_seconds: Some(role.best_seconds),
                alone_best_cores: Some(role.best_cores),
                curve_source: "simulated alone, one run a point".to_owned(),
            })
            .collect()
    }

    fn policy(&self, at: usize, (scheduler, trials): &(Scheduler, Vec<Trial>)) -> PolicyResult {
        PolicyResult {
            name: scheduler.name().to_owned(),
            label: scheduler.name().to_owned(),
            role: match at {
                0 => Role::Baseline,
                _ => Role::Candidate,
            },
            rounds: trials.iter().map(|t| self.round(*scheduler, t)).collect(),
            comparison: None,
        }
    }

    fn round(&self, scheduler: Scheduler, trial: &Trial) -> RoundResult {
        let acted = trial.acts.seats + trial.acts.stops > 0;
        let (timeline, cut_s) = self.timeline(trial);
        let cut = cut_s.map(|at_s| (at_s, CUT.to_owned()));
        let abstained = scheduler != Scheduler::Linux && !acted;
        RoundResult {
            antt: self.antt(trial),
            programs: (0..self.cast.roles.len())
                .map(|role| self.program_round(scheduler, role, trial))
                .collect(),
            timeline,
            notes: trial.notes.iter().cloned().chain(cut).collect(),
            abstained,
            abstained_because: trial
                .notes
                .last()
                .map(|(_, text)| text.clone())
                .filter(|_| abstained),
        }
    }

    /// Mean NTT of all that ran, by weight; who came by chance and was not
    /// done when the run was over does not count, who was there does.
    pub fn antt(&self, trial: &Trial) -> Option<f64> {
        let counts = trial
            .guests
            .iter()
            .filter(|g| !g.by_chance || g.ntt.is_some());
        antt(counts.map(|g| (g.ntt, self.cast.roles[g.role].weight)))
    }

    fn program_round(&self, scheduler: Scheduler, role: usize, trial: &Trial) -> ProgramRound {
        let guests: Vec<&Guest> = trial.guests.iter().filter(|g| g.role == role).collect();
        let ntts: Vec<f64> = guests.iter().filter_map(|g| g.ntt).collect();
        let seconds: Vec<f64> = guests.iter().flat_map(|g| &g.seconds).copied().collect();
        let looks = !matches!(
            scheduler,
            Scheduler::Linux | Scheduler::Equal | Scheduler::Oracle
        );
        ProgramRound {
            name: self.cast.roles[role].name.clone(),
            ntt: stats::mean(&ntts),
            reps: seconds.len() as u32,
            progress_source: looks.then_some(ProgressSource::Instructions),
            confidence: None,
            failure: match (guests.is_empty(), seconds.is_empty()) {
                (true, _) => None,
                (false, true) => Some(format!("not done once in {:.0} s", trial.seconds)),
                (false, false) => None,
            },
            seconds,
        }
    }

    /// Who sat where, by role: what copies of a program do at the same time
    /// and place is one span. And since when it is not complete, if it is not.
    fn timeline(&self, trial: &Trial) -> (Vec<SeatSpan>, Option<f64>) {
        let mut spans: Vec<SeatSpan> = Vec::new();
        let mut cut_s: Option<f64> = None;
        // The last span of each kind, by place: joined with what follows it.
        let mut last: BTreeMap<String, usize> = BTreeMap::new();
        let mut stays: Vec<&Stay> = trial.stays.iter().collect();
        stays.sort_by_key(|stay| (stay.from_ns, stay.program));
        for span in stays.into_iter().flat_map(|stay| self.spans(trial, stay)) {
            let key = format!(
                "{} {:?} {:?} {}",
                span.program, span.mode, span.borrowed_from, span.cpus
            );
            let full = spans.len() >= SPANS_MAX;
            match last.get(&key).map(|&at| &mut spans[at]) {
                Some(open) if span.start_s <= open.end_s => {
                    open.end_s = open.end_s.max(span.end_s);
                }
                _ if full => cut_s = cut_s.or(Some(span.start_s)),
                _ => {
                    last.insert(key, spans.len());
                    spans.push(span);
                }
            }
        }
        (spans, cut_s)
    }

    fn spans(&self, trial: &Trial, stay: &Stay) -> Vec<SeatSpan> {
        let role = |id: usize| {
            let guest = trial.guests.get(id.wrapping_sub(1));
            guest.map(|guest| self.cast.roles[guest.role].name.clone())
        };
        let place = &stay.place;
        let mode = match (place.frozen, place.mode) {
            (true, _) => SpanMode::Frozen,
            (false, SeatMode::Seated) => SpanMode::Seated,
            (false, SeatMode::Shared) => SpanMode::Shared,
            (false, SeatMode::InTurn) => SpanMode::InTurn,
        };
        let span = |cpus: &usher_model::CpuSet, borrowed_from: Option<Lender>| SeatSpan {
            program: role(stay.program.0 as usize).unwrap_or_default(),
            start_s: stay.from_ns as f64 / 1e9,
            end_s: stay.to_ns as f64 / 1e9,
            cpus: cpus.clone(),
            mode,
            borrowed_from,
        };
        let own = (!place.own.is_empty()).then(|| span(&place.own, None));
        let borrowed = place.borrowed.iter().map(|(owner, cpus)| {
            let owner = owner.and_then(|owner| role(owner.0 as usize));
            span(cpus, Some(owner.map_or(Lender::Nobody, Lender::Program)))
        });
        own.into_iter().chain(borrowed).collect()
    }
}

/// Every cost with its value.
fn costs(costs: &crate::machine::Costs) -> String {
    let table = serde_json::to_value(costs).unwrap_or_default();
    let pairs = table.as_object().into_iter().flatten();
    let pairs = pairs.map(|(key, value)| format!("{key} {value}"));
    pairs.collect::<Vec<_>>().join(", ")
}
