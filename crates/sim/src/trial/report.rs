// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts the trials of a simulated mix to the data of tables and reports: NTTs, ANTT, arrival
//! statistics and timelines. The data has the same form as that of a measured mix. A timeline has
//! at most 1,500 spans, and states the time after which it is incomplete.
//!
//! An NTT or a mean without values is missing instead of 0. Building a report takes linearithmic
//! time in the number of seat periods, and linear time in all other results.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use usher_model::{ProgressSource, SeatMode};
use usher_report::data::{
    Lender, MachineFacts, MixResult, PolicyResult, PolicyRole, ProgramFacts, ProgramRound,
    Protocol, RoundResult, SeatSpan, SpanMode, antt,
};
use usher_report::stats;

use super::{MixSetup, ProgramOutcome, SeatPeriod, Trial};
use crate::campaign::Scheduler;
use crate::kernel::{GroupBy, QueueOrder};
use crate::mixfile::SimMix;

/// Maximum number of spans in a timeline. The time to draw a timeline is quadratic in this number.
const SPANS_MAX: usize = 1_500;
const CUT: &str = "the timeline is incomplete after this time, because the timeline would have \
                   too many seats to draw";

/// The results of a mix, with the data that a report needs.
#[derive(Debug)]
pub struct MixReport<'a> {
    /// The mix.
    pub mix: &'a SimMix,
    /// The programs of the mix on their machine.
    pub setup: &'a MixSetup,
    /// The command that reproduces the run.
    pub command: String,
    /// Schedulers, each with one trial per round.
    pub trials: &'a [(Scheduler, Vec<Trial>)],
}

/// Statistics of the random arrivals of one trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct ArrivalStats {
    /// Number of arrivals.
    pub arrived: usize,
    /// Number of departures before the end of the run.
    pub departed: usize,
    /// Mean response time, from arrival to departure, of programs that run to the end of their
    /// work.
    pub response_mean_s: Option<f64>,
    /// 95th percentile of the response times.
    pub response_p95_s: Option<f64>,
    /// Mean NTT of the arrivals.
    pub slowdown_mean: Option<f64>,
    /// Number of times per virtual second that an arrival completes its work.
    pub throughput_per_s: f64,
    /// Mean number of arrivals that are present at a time.
    pub present_mean: f64,
}

impl ArrivalStats {
    /// Returns the statistics of a trial; `None` without random arrivals. If `limited` is set,
    /// arrivals depart after a random lifetime, and have no response time.
    pub fn of(trial: &Trial, limited: bool) -> Option<Self> {
        let arrivals: Vec<&ProgramOutcome> = trial.programs.iter().filter(|g| g.random).collect();
        if arrivals.is_empty() {
            return None;
        }
        let left = arrivals.iter().filter_map(|g| Some(g.left_s? - g.at_s));
        let responses: Vec<f64> = left.collect();
        let ntts: Vec<f64> = arrivals.iter().filter_map(|g| g.ntt).collect();
        let there = arrivals.iter();
        let there = there.map(|g| (g.left_s.unwrap_or(trial.seconds) - g.at_s).max(0.0));
        let done: usize = arrivals.iter().map(|g| g.seconds.len()).sum();
        let of_work = Some(&responses).filter(|_| !limited);
        Some(Self {
            arrived: arrivals.iter().filter(|g| g.at_s <= trial.seconds).count(),
            departed: responses.len(),
            response_mean_s: of_work.and_then(|all| stats::mean(all)),
            response_p95_s: of_work.and_then(|all| stats::quantile(all, 0.95)),
            slowdown_mean: stats::mean(&ntts),
            throughput_per_s: done as f64 / trial.seconds,
            present_mean: there.sum::<f64>() / trial.seconds,
        })
    }
}

impl MixReport<'_> {
    /// Returns the results in the form that a report shows: copies of a program share a row.
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
        let kernel = &self.setup.kernel;
        let group_by = match (kernel.order, kernel.group_by) {
            (QueueOrder::Usher, _) | (_, GroupBy::Threads) => "threads",
            (_, GroupBy::Programs) => "programs",
        };
        let ms = |ns: u64| ns as f64 / 1e6;
        let order = match kernel.order {
            QueueOrder::Eevdf => format!(
                "a model of Linux (EEVDF, slices of {} ms)",
                ms(kernel.slice_ns)
            ),
            QueueOrder::Usher if kernel.aggregate => format!(
                "a model of Usher's scheduler (slices of {} ms, turns of {} ms, a maximum lag of {} ms)",
                ms(kernel.slice_ns),
                ms(kernel.turn_ns),
                ms(kernel.max_lag_ns)
            ),
            QueueOrder::Usher => format!(
                "a model of Usher's scheduler (slices of {} ms, no grouping by address space)",
                ms(kernel.slice_ns)
            ),
            QueueOrder::Cfs => format!(
                "a model of Linux (CFS, a latency of {} ms)",
                ms(kernel.latency_ns)
            ),
        };
        let smt = if kernel.smt_aware {
            ""
        } else {
            ", without SMT awareness"
        };
        MachineFacts {
            host: "a simulated machine".to_owned(),
            kernel: format!("{order}, shares CPU time equally between {group_by}{smt}"),
            topology: self.setup.machine.topology().clone(),
            cpu_model: format!("cost preset {}", self.mix.cost_preset),
            pmu: true,
            notes: vec![format!(
                "machine description '{}'; costs: {}",
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
                    "under the scheduler {}, {cut} of {} rounds reached the limit of {} s before \
                     all programs had completed their repetitions",
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
            sessions: match self.setup.kernel.group_by {
                GroupBy::Programs => "each program in a session of its own".to_owned(),
                GroupBy::Threads => {
                    "CPU time is shared between threads, regardless of their programs".to_owned()
                }
            },
            seed: protocol.seed,
            command: self.command.clone(),
            date: String::new(),
            notes,
        }
    }

    fn programs(&self) -> Vec<ProgramFacts> {
        let programs = self.setup.programs.iter().zip(&self.mix.programs);
        programs
            .map(|(model, program)| ProgramFacts {
                name: model.name.clone(),
                command: model.about.clone(),
                class: match (program.resident, program.copies) {
                    (false, _) => "random arrivals".to_owned(),
                    (true, 1) => String::new(),
                    (true, copies) => format!("{copies} copies"),
                },
                weight: model.weight,
                curve: Some(model.alone.clone()),
                alone_best_seconds: Some(model.best_seconds),
                alone_best_cores: Some(model.best_cores),
                curve_source: "simulated alone, with one run for each point".to_owned(),
            })
            .collect()
    }

    fn policy(&self, at: usize, (scheduler, trials): &(Scheduler, Vec<Trial>)) -> PolicyResult {
        PolicyResult {
            name: scheduler.name().to_owned(),
            label: scheduler.name().to_owned(),
            role: match at {
                0 => PolicyRole::Baseline,
                _ => PolicyRole::Candidate,
            },
            rounds: trials.iter().map(|t| self.round(*scheduler, t)).collect(),
            comparison: None,
        }
    }

    fn round(&self, scheduler: Scheduler, trial: &Trial) -> RoundResult {
        let acted = trial.action_counts.seats + trial.action_counts.stops > 0;
        let (timeline, cut_s) = self.timeline(trial);
        let cut = cut_s.map(|at_s| (at_s, CUT.to_owned()));
        let abstained = scheduler != Scheduler::Linux && !acted;
        RoundResult {
            antt: self.antt(trial),
            programs: (0..self.setup.programs.len())
                .map(|index| self.program_round(scheduler, index, trial))
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

    /// Returns the weighted mean of the NTTs. Random arrivals that had not completed their work at
    /// the end of the run are excluded.
    pub fn antt(&self, trial: &Trial) -> Option<f64> {
        let counts = trial
            .programs
            .iter()
            .filter(|g| !g.random || g.ntt.is_some());
        antt(counts.map(|g| (g.ntt, self.setup.programs[g.program].weight)))
    }

    fn program_round(&self, scheduler: Scheduler, index: usize, trial: &Trial) -> ProgramRound {
        let outcomes: Vec<&ProgramOutcome> = trial
            .programs
            .iter()
            .filter(|g| g.program == index)
            .collect();
        let ntts: Vec<f64> = outcomes.iter().filter_map(|g| g.ntt).collect();
        let seconds: Vec<f64> = outcomes.iter().flat_map(|g| &g.seconds).copied().collect();
        let observes = !matches!(
            scheduler,
            Scheduler::Linux | Scheduler::Equal | Scheduler::Oracle
        );
        ProgramRound {
            name: self.setup.programs[index].name.clone(),
            ntt: stats::mean(&ntts),
            reps: seconds.len() as u32,
            progress_source: observes.then_some(ProgressSource::Instructions),
            confidence: None,
            failure: match (outcomes.is_empty(), seconds.is_empty()) {
                (true, _) => None,
                (false, true) => Some(format!(
                    "the program completed no repetition in {:.0} s",
                    trial.seconds
                )),
                (false, false) => None,
            },
            seconds,
        }
    }

    /// Returns the seats of each program over time. Identical seats of copies at the same time form
    /// one span. The second value is the time after which the timeline is incomplete; `None` if it
    /// is complete.
    fn timeline(&self, trial: &Trial) -> (Vec<SeatSpan>, Option<f64>) {
        let mut spans: Vec<SeatSpan> = Vec::new();
        let mut cut_s: Option<f64> = None;
        // For each combination of program, mode and CPUs, the index of its last span. A span that
        // follows without a gap extends the last span.
        let mut last: BTreeMap<String, usize> = BTreeMap::new();
        let mut seat_periods: Vec<&SeatPeriod> = trial.seat_periods.iter().collect();
        seat_periods.sort_by_key(|period| (period.from_ns, period.program));
        for span in seat_periods
            .into_iter()
            .flat_map(|period| self.spans(trial, period))
        {
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

    fn spans(&self, trial: &Trial, period: &SeatPeriod) -> Vec<SeatSpan> {
        let name_of = |id: usize| {
            let outcome = trial.programs.get(id.wrapping_sub(1));
            outcome.map(|outcome| self.setup.programs[outcome.program].name.clone())
        };
        let seat = &period.seat_state;
        let mode = match (seat.frozen, seat.mode) {
            (true, _) => SpanMode::Frozen,
            (false, SeatMode::Seated) => SpanMode::Seated,
            (false, SeatMode::Shared) => SpanMode::Shared,
            (false, SeatMode::InTurn) => SpanMode::InTurn,
        };
        let span = |cpus: &usher_model::CpuSet, borrowed_from: Option<Lender>| SeatSpan {
            program: name_of(period.program.0 as usize).unwrap_or_default(),
            start_s: period.from_ns as f64 / 1e9,
            end_s: period.to_ns as f64 / 1e9,
            cpus: cpus.clone(),
            mode,
            borrowed_from,
        };
        let own = (!seat.own.is_empty()).then(|| span(&seat.own, None));
        let borrowed = seat.borrowed.iter().map(|(owner, cpus)| {
            let owner = owner.and_then(|owner| name_of(owner.0 as usize));
            span(cpus, Some(owner.map_or(Lender::Unowned, Lender::Program)))
        });
        own.into_iter().chain(borrowed).collect()
    }
}

/// Returns a text with every cost and its value.
fn costs(costs: &crate::machine::Costs) -> String {
    let table = serde_json::to_value(costs).unwrap_or_default();
    let pairs = table.as_object().into_iter().flatten();
    let pairs = pairs.map(|(key, value)| format!("{key} {value}"));
    pairs.collect::<Vec<_>>().join(", ")
}
