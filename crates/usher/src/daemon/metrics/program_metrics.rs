// SPDX-License-Identifier: GPL-2.0-only
//! Metrics of single programs. Each series has the labels `id`, `name`, `uid` and `background`, and
//! the label `batch_job` if the program belongs to a job of a batch system.
//!
//! A program has series only while it is managed. At most [`PROGRAMS_MAX`] programs have series,
//! those with the lowest numbers; `usher_programs_omitted` counts the others. The labels `source`
//! and `cause` have a fixed set of values.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};
use usher_host::engine::{ProgramStatus, Status};

use super::super::{abstention, view};

/// Maximum number of programs with series of their own.
pub const PROGRAMS_MAX: usize = 256;

/// The labels of every series of a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProgramLabels {
    id: u64,
    name: String,
    uid: u32,
    background: &'static str,
    #[prometheus(flatten)]
    job: Vec<(&'static str, String)>,
}

impl ProgramLabels {
    fn new(program: &ProgramStatus) -> Self {
        Self {
            id: program.id.0,
            name: program.name.clone(),
            uid: program.uid,
            background: match program.background {
                Some(_) => "true",
                None => "false",
            },
            job: program
                .job
                .iter()
                .map(|job| ("batch_job", job.clone()))
                .collect(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProgressLabels {
    #[prometheus(flatten)]
    program: ProgramLabels,
    source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AbstentionLabels {
    #[prometheus(flatten)]
    program: ProgramLabels,
    cause: String,
}

type FloatGauge = Gauge<f64, AtomicU64>;
type FloatCounter = Counter<f64, AtomicU64>;

/// Registers the metrics of each program.
pub fn register(registry: &mut Registry, status: &Status) {
    let omitted = status.programs.len().saturating_sub(PROGRAMS_MAX);
    registry.register(
        "programs_omitted",
        "Managed programs without metrics of their own, because there are too many programs",
        ConstGauge::new(omitted as i64),
    );
    let programs = &status.programs[..status.programs.len() - omitted];
    register_cpus(registry, programs, status);
    register_progress(registry, programs);
    register_state(registry, programs, status);
}

/// Registers the seats and the use of CPUs.
fn register_cpus(registry: &mut Registry, programs: &[ProgramStatus], status: &Status) {
    let seats = Family::<ProgramLabels, Gauge>::default();
    let cpu_time = Family::<ProgramLabels, FloatCounter>::default();
    for program in programs {
        let labels = ProgramLabels::new(program);
        let seat = view::seat(program, status).map_or(0, |cpus| cpus.len());
        seats.get_or_create(&labels).set(seat as i64);
        cpu_time
            .get_or_create(&labels)
            .inc_by(program.cpu_seconds.max(0.0));
    }
    registry.register(
        "program_seat_cpus",
        "CPUs of the seat of a program, with borrowed CPUs; 0 without a seat",
        seats,
    );
    registry.register_with_unit(
        "program_cpu",
        "CPU time of all processes of a program since it is managed",
        Unit::Seconds,
        cpu_time,
    );
}

/// Registers the progress rates and the weights.
fn register_progress(registry: &mut Registry, programs: &[ProgramStatus]) {
    let rates = Family::<ProgressLabels, FloatGauge>::default();
    let weights = Family::<ProgramLabels, FloatGauge>::default();
    for program in programs {
        let labels = ProgramLabels::new(program);
        weights.get_or_create(&labels).set(program.weight);
        if let (Some(progress), Some(rate)) = (program.progress, program.progress_per_second) {
            let source = progress.source.to_string();
            let program = labels;
            let labels = ProgressLabels { program, source };
            rates.get_or_create(&labels).set(rate);
        }
    }
    registry.register(
        "program_progress_per_second",
        "Progress of a program per second over the last 10 s, in the unit of its source",
        rates,
    );
    registry.register(
        "program_weight",
        "Weight of a program in the mean that the policy minimises",
        weights,
    );
}

/// Registers whether programs are stopped, and why they have no seat.
fn register_state(registry: &mut Registry, programs: &[ProgramStatus], status: &Status) {
    let frozen = Family::<ProgramLabels, Gauge>::default();
    let causes = Family::<AbstentionLabels, Gauge>::default();
    for program in programs {
        let labels = ProgramLabels::new(program);
        frozen.get_or_create(&labels).set(program.frozen.into());
        if let Some(abstention) = abstention::of_program(program, status) {
            let cause = format!("{:?}", abstention.cause);
            let program = labels;
            let labels = AbstentionLabels { program, cause };
            causes.get_or_create(&labels).set(1);
        }
    }
    registry.register(
        "program_frozen",
        "Whether Usher has stopped a program (1) or not (0)",
        frozen,
    );
    registry.register(
        "program_abstention",
        "1 for a program without a seat, with the cause as a label",
        causes,
    );
}

#[cfg(test)]
mod tests {
    use usher_model::{CpuSet, Progress, ProgressSource};
    use usher_topology::Source;

    use super::super::super::explain::samples::{program, status};
    use super::super::{Timings, page};
    use super::*;

    #[test]
    fn programs_have_metrics_with_their_labels() {
        let machine = usher_topology::load(Source::parse("core:4 pu:1").unwrap()).unwrap();
        let mut one = program(7, "odd \"name\" \\", &[]);
        one.cpus = Some("0-2".parse::<CpuSet>().unwrap());
        one.uid = 1000;
        one.cpu_seconds = 12.5;
        one.weight = 2.0;
        one.frozen = true;
        one.progress = Some(Progress {
            total: 10.0,
            source: ProgressSource::Heartbeat,
            confidence: 1.0,
        });
        one.progress_per_second = Some(4.5);
        let text = page(&status(vec![one], &machine), &Timings::default()).unwrap();
        let labels = r#"id="7",name="odd \"name\" \\",uid="1000",background="false""#;
        for line in [
            format!("usher_program_seat_cpus{{{labels}}} 3"),
            format!("usher_program_cpu_seconds_total{{{labels}}} 12.5"),
            format!("usher_program_progress_per_second{{{labels},source=\"heartbeat\"}} 4.5"),
            format!("usher_program_weight{{{labels}}} 2.0"),
            format!("usher_program_frozen{{{labels}}} 1"),
            "usher_programs_omitted 0".to_owned(),
        ] {
            assert!(text.lines().any(|l| l == line), "no '{line}' in\n{text}");
        }
    }

    #[test]
    fn programs_of_a_job_have_its_label() {
        let machine = usher_topology::load(Source::parse("core:4 pu:1").unwrap()).unwrap();
        let mut one = program(7, "a", &[]);
        one.job = Some("17.0".to_owned());
        let text = page(&status(vec![one], &machine), &Timings::default()).unwrap();
        let line = r#"usher_program_weight{id="7",name="a",uid="0",background="false",batch_job="17.0"} 1.0"#;
        assert!(text.lines().any(|one| one == line), "{text}");
    }

    #[test]
    fn a_program_without_a_seat_has_one_cause() {
        let machine = usher_topology::load(Source::parse("core:4 pu:1").unwrap()).unwrap();
        let mut pinned = program(1, "a", &[]);
        pinned.mode = Some(usher_model::SeatMode::Shared);
        pinned.pinned_to = Some("1".parse().unwrap());
        let text = page(&status(vec![pinned], &machine), &Timings::default()).unwrap();
        let causes = text
            .lines()
            .filter(|line| line.starts_with("usher_program_abstention{"));
        let causes: Vec<&str> = causes.collect();
        assert_eq!(causes.len(), 1, "{causes:?}");
        assert!(causes[0].ends_with(r#",cause="pinned"} 1"#), "{causes:?}");
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let machine = usher_topology::load(Source::parse("core:4 pu:1").unwrap()).unwrap();
        let programs = (0..PROGRAMS_MAX as u64 + 9).map(|id| program(id, "a", &[]));
        let all = status(programs.collect(), &machine);
        let text = page(&all, &Timings::default()).unwrap();
        let series = text
            .lines()
            .filter(|line| line.starts_with("usher_program_weight{"));
        assert_eq!(series.count(), PROGRAMS_MAX);
        assert!(text.contains("usher_programs_omitted 9\n"));
        assert!(text.contains("usher_programs{mode=\"arriving\"} 265\n"));
    }
}
