// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of mixes from sim files: arrivals, results, and a comparison of random arrivals with
//! queueing theory.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use proptest::prelude::*;
use usher_sim::campaign::Scheduler;
use usher_sim::machine::Machine;
use usher_sim::mixfile::SimMix;
use usher_sim::trial::{
    self, ArrivalSpec, ArrivalStats, MixSetup, ProgramModel, Trial, TrialError, TrialProtocol,
};

fn mix(text: &str) -> SimMix {
    SimMix::parse(Path::new("mix.toml"), text).unwrap()
}

fn machine(mix: &SimMix) -> Machine {
    let source = usher_topology::Source::parse(&mix.machine).unwrap();
    Machine::new(usher_topology::load(source).unwrap(), mix.costs.clone())
}

fn setup(mix: &SimMix) -> MixSetup {
    let machine = machine(mix);
    let role = |program| ProgramModel::measure(program, mix, &machine, mix.protocol.seed);
    MixSetup {
        programs: mix
            .programs
            .iter()
            .map(role)
            .collect::<Result<_, _>>()
            .unwrap(),
        kernel: mix.kernel.clone(),
        machine,
    }
}

fn arrival_specs(mix: &SimMix, setup: &MixSetup) -> Vec<ArrivalSpec> {
    let cpus = setup.machine.topology().cpus.len();
    trial::arrival_specs(mix, cpus, mix.protocol.seed).unwrap()
}

fn run(mix: &SimMix, setup: &MixSetup, scheduler: Scheduler) -> Result<Trial, TrialError> {
    let protocol = TrialProtocol {
        repetitions: mix.protocol.repetitions,
        seed: mix.protocol.seed,
        max_seconds: mix.protocol.max_seconds,
        events_max: mix.protocol.events_max,
        node: mix.protocol.node,
        spans_max: 0,
    };
    trial::run(setup, &arrival_specs(mix, setup), scheduler, &protocol)
}

/// Sim file of a machine with one core and without costs of switches, and of programs with one
/// thread that computes.
const ONE_CORE: &str = r#"
    [machine]
    from = "core:1 pu:1"
    costs = { switch_ns = 0, private_refill_ns = 0 }
    [protocol]
    seed = 3
    [[program]]
    name = "short"
    threads = 1
    seconds = 0.05
    traits = { frame_ms = 25, spread = 0 }
    [[program]]
    name = "long"
    threads = 1
    seconds = 0.2
    traits = { frame_ms = 25, spread = 0 }
"#;

/// A core that programs share evenly is an M/G/1 queue with processor sharing. A program with work
/// s departs after s / (1 - load) on average, for any distribution of the work (Kleinrock 1976,
/// volume 2, section 4.4). By Little's law, load / (1 - load) programs are present on average.
#[test]
fn one_core_with_arrivals_follows_queueing_theory() {
    for (rate, load) in [(2.4, 0.3), (4.8, 0.6)] {
        let arrivals = format!("[arrivals]\nrate_per_s = {rate}\ncount = 3000");
        let mix = mix(&format!("{ONE_CORE}\n{arrivals}"));
        let setup = setup(&mix);
        let trial = run(&mix, &setup, Scheduler::Linux).unwrap();
        assert!(trial.complete);
        let stats = ArrivalStats::of(&trial, false).unwrap();
        assert_eq!((stats.arrived, stats.departed), (3000, 3000));
        let near = |got: f64, want: f64| {
            assert!((got / want - 1.0).abs() < 0.1, "{got} against {want}");
        };
        for program in 0..2 {
            let own = trial
                .programs
                .iter()
                .filter(|outcome| outcome.program == program);
            let ntts: Vec<f64> = own.filter_map(|outcome| outcome.ntt).collect();
            near(
                ntts.iter().sum::<f64>() / ntts.len() as f64,
                1.0 / (1.0 - load),
            );
        }
        near(stats.response_mean_s.unwrap(), 0.125 / (1.0 - load));
        near(stats.present_mean, load / (1.0 - load));
        near(stats.throughput_per_s, rate);
    }
}

#[test]
fn program_with_lifetime_repeats_until_it_departs() {
    let mix = mix(&format!(
        "{ONE_CORE}\n[arrivals]\nrate_per_s = 1\nseconds = 100\nlifetime_s = 2\nprograms = [\"short\"]"
    ));
    let setup = setup(&mix);
    let spec = arrival_specs(&mix, &setup);
    // The program that is not drawn at random runs from the start, with three repetitions.
    let trial = run(&mix, &setup, Scheduler::Linux).unwrap();
    assert!(trial.complete);
    for (outcome, spec) in trial.programs.iter().zip(&spec) {
        let departed_s = outcome.left_s;
        match spec.leaves_ns {
            Some(leaves_ns) => {
                let due_s = leaves_ns as f64 / 1e9;
                assert!((departed_s.unwrap() - due_s).abs() < 1e-6, "{outcome:?}");
            }
            None => assert!(outcome.seconds.len() >= 3 && departed_s.is_none()),
        }
    }
    let random: Vec<_> = trial.programs.iter().filter(|g| g.random).collect();
    assert!((60..140).contains(&random.len()), "{}", random.len());
    assert!(random.iter().any(|outcome| outcome.seconds.len() > 5));
}

#[test]
fn same_seed_gives_same_run_and_another_seed_does_not() {
    let text = r#"
        [machine]
        from = "package:2 numa:1 core:4 pu:2"
        [[program]]
        parsec = "ferret"
        seconds = 2
        [[program]]
        parsec = "streamcluster"
        seconds = 2
        copies = 2
    "#;
    let mut mix = mix(text);
    let setup = setup(&mix);
    for scheduler in [Scheduler::Linux, Scheduler::Casas, Scheduler::Usher] {
        let mut seconds = |seed| {
            mix.protocol.seed = seed;
            let trial = run(&mix, &setup, scheduler).unwrap();
            let all = trial.programs.into_iter().map(|outcome| outcome.seconds);
            (trial.events, trial.seat_periods, all.collect::<Vec<_>>())
        };
        assert_eq!(seconds(1), seconds(1));
        assert_ne!(seconds(1).2, seconds(2).2);
    }
}

#[test]
fn seats_have_no_gaps_and_lie_on_existing_cpus() {
    let text = r#"
        [machine]
        from = "package:2 numa:1 core:4 pu:1"
        [[program]]
        parsec = "ferret"
        seconds = 2
        [[program]]
        parsec = "canneal"
        seconds = 2
    "#;
    let mix = mix(text);
    let setup = setup(&mix);
    let trial = run(&mix, &setup, Scheduler::Equal).unwrap();
    assert!(trial.action_counts.seats >= 2);
    for id in 1..=2 {
        let own: Vec<_> = trial
            .seat_periods
            .iter()
            .filter(|s| s.program.0 == id)
            .collect();
        assert_eq!(own[0].from_ns, 0);
        assert!(own.windows(2).all(|pair| pair[0].to_ns == pair[1].from_ns));
        let end_ns = own[own.len() - 1].to_ns;
        assert_eq!(end_ns, (trial.seconds * 1e9).round() as u64);
        assert!(own.iter().all(|period| period.seat_state.own.len() == 4));
    }
}

#[test]
fn rejects_too_many_programs_and_too_many_distributions() {
    let program = "[[program]]\nname = \"p\"\nthreads = 1\nseconds = 0.1\ntraits = {}";
    let many = mix(&format!(
        "[machine]\nfrom = \"core:2 pu:1\"\n{program}\ncopies = 33"
    ));
    let error = trial::arrival_specs(&many, 2, 1).unwrap_err();
    assert_eq!(
        error,
        TrialError::TooMany {
            programs: 33,
            cpus: 2,
            most: 32
        }
    );
    let three = mix(&format!(
        "[machine]\nfrom = \"package:2 core:2 pu:1\"\n{program}\ncopies = 3"
    ));
    let setup = setup(&three);
    let error = run(&three, &setup, Scheduler::Oracle)
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("the 3 programs outnumber the machine's 2 domains"),
        "{error}"
    );
}

#[test]
fn stuck_script_is_reported_with_program_and_run() {
    let text = r#"
        [machine]
        from = "core:2 pu:1"
        [[program]]
        name = "stuck"
        [program.script]
        roles = [
            { threads = 1, steps = [{ lock = 0 }, { work = { ns = 1e6 } }] },
            { threads = 1, steps = [{ sleep = { ns = 100000 } }, { lock = 0 }] },
        ]
    "#;
    let mix = mix(text);
    let error = ProgramModel::measure(&mix.programs[0], &mix, &machine(&mix), 1).unwrap_err();
    let message = error.to_string();
    let want = "simulating 'stuck' alone on 1 core: program 'stuck': deadlock: since ";
    assert!(message.starts_with(want), "{message}");
    assert!(
        message.ends_with("a thread of role 1 waits in step 1 for lock 0"),
        "{message}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arrivals_depend_on_seed_only_in_order_and_number(
        seed: u64,
        rate in 0.01..50.0f64,
        count in 1..400u32,
        lifetime in prop::option::of(0.1..100.0f64),
    ) {
        let lifetime = lifetime.map_or(String::new(), |mean| format!("lifetime_s = {mean}"));
        let mut mix = mix(&format!(
            "{ONE_CORE}\n[arrivals]\nrate_per_s = {rate}\ncount = {count}\n{lifetime}"
        ));
        mix.protocol.seed = seed;
        let arrivals = |seed| trial::arrival_specs(&mix, 1, seed).unwrap();
        let all = arrivals(seed);
        prop_assert_eq!(&all, &arrivals(seed));
        prop_assert_ne!(&all, &arrivals(seed ^ 1));
        prop_assert_eq!(all.len(), count as usize);
        prop_assert!(all.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns));
        prop_assert!(all.iter().all(|c| c.leaves_ns.is_none_or(|ns| ns >= c.at_ns)));
        let mut names: Vec<_> = all.iter().map(|spec| &spec.name).collect();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), all.len());
        // The last of n programs arrives at n / rate, within five standard deviations.
        let (n, last_s) = (f64::from(count), all[all.len() - 1].at_ns as f64 / 1e9);
        prop_assert!((last_s * rate - n).abs() < 5.0 * n.sqrt() + 5.0);
    }
}

/// Sim file of two machines' worth of jobs without costs of switches: each program has one thread
/// on a core of its own request.
fn stacked(more: &str) -> SimMix {
    mix(&format!(
        r#"
        [machine]
        from = "core:2 pu:1"
        costs = {{ switch_ns = 0, private_refill_ns = 0 }}
        {more}
        [[program]]
        name = "a"
        threads = 2
        seconds = 2
        traits = {{ frame_ms = 50, spread = 0 }}
        [[program]]
        name = "b"
        threads = 2
        seconds = 2
        traits = {{ frame_ms = 50, spread = 0 }}
    "#
    ))
}

fn near(got: f64, want: f64) {
    assert!((got / want - 1.0).abs() < 0.02, "{got} against {want}");
}

/// Two jobs of 1 s on two cores. Stacked, both take 2 s. In slices of 0.4 s, the first job runs from
/// 0, 0.8 and 1.6 s, and ends at 1.8 s; the second job ends at 2 s.
#[test]
fn stacked_jobs_share_time_and_gang_jobs_run_in_turn() {
    let protocol = "[protocol]\nrepetitions = 1\ngang_slice_s = 0.4";
    let mut mix = stacked(protocol);
    mix.programs
        .iter_mut()
        .for_each(|program| program.repeats = false);
    let setup = setup(&mix);
    let seconds = |scheduler| {
        let trial = run(&mix, &setup, scheduler).unwrap();
        assert!(trial.complete);
        let all = trial.programs.into_iter().map(|outcome| outcome.seconds[0]);
        all.collect::<Vec<f64>>()
    };
    let stacked = seconds(Scheduler::Oversubscribe);
    near(stacked[0], 2.0);
    near(stacked[1], 2.0);
    let gang = seconds(Scheduler::Gang);
    near(gang[0], 1.8);
    near(gang[1], 2.0);
    // Without a limit of the request, stacking is what the kernel does.
    assert_eq!(stacked, seconds(Scheduler::Linux));
}

/// Jobs that request one core each do not overlap, and need not be suspended.
#[test]
fn jobs_that_fit_beside_each_other_are_not_suspended() {
    let mut mix = stacked("[protocol]\nrepetitions = 1\ngang_slice_s = 0.5");
    for program in &mut mix.programs {
        (program.cpus, program.repeats) = (Some(1), false);
    }
    let setup = setup(&mix);
    for scheduler in [Scheduler::Oversubscribe, Scheduler::Gang] {
        let trial = run(&mix, &setup, scheduler).unwrap();
        assert_eq!(trial.action_counts.stops, 0, "{scheduler:?}");
        for outcome in &trial.programs {
            near(outcome.seconds[0], 2.0);
        }
    }
}

/// With one job on each core, the second job waits until the first job has ended.
#[test]
fn a_job_without_cores_waits() {
    let mut mix = stacked("[protocol]\nrepetitions = 1\njobs_per_core = 1");
    mix.programs
        .iter_mut()
        .for_each(|program| program.repeats = false);
    let setup = setup(&mix);
    for scheduler in [Scheduler::Oversubscribe, Scheduler::Gang] {
        let trial = run(&mix, &setup, scheduler).unwrap();
        near(trial.programs[0].seconds[0], 1.0);
        near(trial.programs[1].seconds[0], 2.0);
    }
}

/// A switch costs each thread a context switch and the refill of its caches.
#[test]
fn short_slices_cost_more_than_long_slices() {
    let text = r#"
        [machine]
        from = "core:2 pu:1"
        costs = { refill_gbps = 0.5 }
        [protocol]
        repetitions = 2
        gang_slice_s = SLICE
        [[program]]
        name = "a"
        seconds = 4
        traits = { frame_ms = 50, spread = 0, memory = { private_bytes = 4e6 } }
        copies = 2
    "#;
    let mean = |slice: &str| {
        let mix = mix(&text.replace("SLICE", slice));
        let setup = setup(&mix);
        let trial = run(&mix, &setup, Scheduler::Gang).unwrap();
        let all = trial.programs.iter().flat_map(|outcome| &outcome.seconds);
        all.clone().sum::<f64>() / all.count() as f64
    };
    let (short, long) = (mean("0.1"), mean("1"));
    // Each slice of 100 ms begins with a refill of the last-level cache, which takes 2 ms.
    assert!(short > 1.01 * long, "{short} {long}");
}

#[test]
fn rejects_invalid_settings_of_slurm() {
    let error = |more: &str| {
        let text =
            format!("[machine]\nfrom = \"core:2\"\n{more}\n[[program]]\nparsec = \"ferret\"");
        SimMix::parse(Path::new("mix.toml"), &text)
            .unwrap_err()
            .to_string()
    };
    assert!(error("[protocol]\ngang_slice_s = 0").contains("gang_slice_s: must be from 0.1"));
    assert!(error("[protocol]\ngang_slice_s = nan").contains("gang_slice_s"));
    assert!(error("[protocol]\njobs_per_core = 0").contains("jobs_per_core: must be 1"));
    assert!(error("[[program]]\nname = \"x\"\ncpus = 0\ntraits = {}").contains("cpus: must be 1"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// All jobs end, at the latest when they run one after another.
    #[test]
    fn jobs_end_under_both_ways_of_slurm(
        requests in prop::collection::vec(1..=4_u32, 2..6),
        slice in 1..5_u32,
    ) {
        let mut mix = mix(r#"
            [machine]
            from = "core:4 pu:1"
            [protocol]
            repetitions = 1
            jobs_per_core = 8
            [[program]]
            name = "a"
            seconds = 1
            traits = { frame_ms = 50 }
        "#);
        mix.protocol.node.slice_s = f64::from(slice) / 10.0;
        let one = mix.programs[0].clone();
        mix.programs = requests.iter().enumerate().map(|(at, &cpus)| {
            let mut program = one.clone();
            program.name = format!("p{at}");
            program.cpus = Some(cpus);
            program.repeats = false;
            program
        }).collect();
        let setup = setup(&mix);
        let trial = run(&mix, &setup, Scheduler::Gang).unwrap();
        prop_assert!(trial.complete);
        // A job of 1 s of work on one core ends at the latest when all jobs run one after another.
        let longest = requests.len() as f64 * (1.0 + mix.protocol.node.slice_s) + 0.5;
        prop_assert!(trial.seconds <= longest, "{} > {}", trial.seconds, longest);
        let stacked = run(&mix, &setup, Scheduler::Oversubscribe).unwrap();
        prop_assert!(stacked.complete);
    }
}
