// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mixes from files: who comes when, what the runs give, and queueing theory
//! as the judge of arrivals.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use proptest::prelude::*;
use usher_sim::campaign::Scheduler;
use usher_sim::machine::Machine;
use usher_sim::mixfile::SimMix;
use usher_sim::trial::{self, Cast, Coming, Protocol, Reception, Role, Trial, TrialError};

fn mix(text: &str) -> SimMix {
    SimMix::parse(Path::new("mix.toml"), text).unwrap()
}

fn machine(mix: &SimMix) -> Machine {
    let source = usher_topology::Source::parse(&mix.machine).unwrap();
    Machine::new(usher_topology::load(source).unwrap(), mix.costs.clone())
}

fn cast(mix: &SimMix) -> Cast {
    let machine = machine(mix);
    let role = |program| Role::measure(program, mix, &machine, mix.protocol.seed);
    Cast {
        roles: mix
            .programs
            .iter()
            .map(role)
            .collect::<Result<_, _>>()
            .unwrap(),
        kernel: mix.kernel.clone(),
        machine,
    }
}

fn comings(mix: &SimMix, cast: &Cast) -> Vec<Coming> {
    let cpus = cast.machine.topology().cpus.len();
    trial::comings(mix, cpus, mix.protocol.seed).unwrap()
}

fn run(mix: &SimMix, cast: &Cast, scheduler: Scheduler) -> Result<Trial, TrialError> {
    let protocol = Protocol {
        repetitions: mix.protocol.repetitions,
        seed: mix.protocol.seed,
        max_seconds: mix.protocol.max_seconds,
        events_max: mix.protocol.events_max,
        spans_max: 0,
    };
    trial::run(cast, &comings(mix, cast), scheduler, &protocol)
}

/// One core whose switches cost nothing, and loops of one thread.
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

/// A core that is shared evenly is the queue M/G/1 with processor sharing: who
/// comes with work s has left after s / (1 - load) on average, whatever the
/// distribution of work (Kleinrock 1976, volume 2, section 4.4), and by Little's
/// law load / (1 - load) are there on average.
#[test]
fn one_core_with_arrivals_obeys_queueing_theory() {
    for (rate, load) in [(2.4, 0.3), (4.8, 0.6)] {
        let arrivals = format!("[arrivals]\nrate_per_s = {rate}\ncount = 3000");
        let mix = mix(&format!("{ONE_CORE}\n{arrivals}"));
        let cast = cast(&mix);
        let trial = run(&mix, &cast, Scheduler::Linux).unwrap();
        assert!(trial.complete);
        let met = Reception::of(&trial, false).unwrap();
        assert_eq!((met.came, met.left), (3000, 3000));
        let near = |got: f64, want: f64| {
            assert!((got / want - 1.0).abs() < 0.1, "{got} against {want}");
        };
        for role in 0..2 {
            let own = trial.guests.iter().filter(|guest| guest.role == role);
            let ntts: Vec<f64> = own.filter_map(|guest| guest.ntt).collect();
            near(
                ntts.iter().sum::<f64>() / ntts.len() as f64,
                1.0 / (1.0 - load),
            );
        }
        near(met.response_mean_s.unwrap(), 0.125 / (1.0 - load));
        near(met.present_mean, load / (1.0 - load));
        near(met.throughput_per_s, rate);
    }
}

#[test]
fn who_stays_for_a_time_leaves_then_and_repeats_until_then() {
    let mix = mix(&format!(
        "{ONE_CORE}\n[arrivals]\nrate_per_s = 1\nseconds = 100\nstay_s = 2\nprograms = [\"short\"]"
    ));
    let cast = cast(&mix);
    let coming = comings(&mix, &cast);
    // The other program is there from the start, three times.
    let mix_trial = run(&mix, &cast, Scheduler::Linux).unwrap();
    assert!(mix_trial.complete);
    for (guest, coming) in mix_trial.guests.iter().zip(&coming) {
        let left_s = guest.left_s;
        match coming.leaves_ns {
            Some(leaves_ns) => {
                let due_s = leaves_ns as f64 / 1e9;
                assert!((left_s.unwrap() - due_s).abs() < 1e-6, "{guest:?}");
            }
            None => assert!(guest.seconds.len() >= 3 && left_s.is_none()),
        }
    }
    let by_chance: Vec<_> = mix_trial.guests.iter().filter(|g| g.by_chance).collect();
    assert!((60..140).contains(&by_chance.len()), "{}", by_chance.len());
    assert!(by_chance.iter().any(|guest| guest.seconds.len() > 5));
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_does_not() {
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
    let cast = cast(&mix);
    for scheduler in [Scheduler::Linux, Scheduler::Casas, Scheduler::Usher] {
        let mut seconds = |seed| {
            mix.protocol.seed = seed;
            let trial = run(&mix, &cast, scheduler).unwrap();
            let all = trial.guests.into_iter().map(|guest| guest.seconds);
            (trial.events, trial.stays, all.collect::<Vec<_>>())
        };
        assert_eq!(seconds(1), seconds(1));
        assert_ne!(seconds(1).2, seconds(2).2);
    }
}

#[test]
fn who_is_seated_is_there_without_gaps_and_where_the_machine_has_cpus() {
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
    let cast = cast(&mix);
    let trial = run(&mix, &cast, Scheduler::Equal).unwrap();
    assert!(trial.acts.seats >= 2);
    for id in 1..=2 {
        let own: Vec<_> = trial.stays.iter().filter(|s| s.program.0 == id).collect();
        assert_eq!(own[0].from_ns, 0);
        assert!(own.windows(2).all(|pair| pair[0].to_ns == pair[1].from_ns));
        let end_ns = own[own.len() - 1].to_ns;
        assert_eq!(end_ns, (trial.seconds * 1e9).round() as u64);
        assert!(own.iter().all(|stay| stay.place.own.len() == 4));
    }
}

#[test]
fn too_many_programs_and_too_many_ways_are_refused() {
    let program = "[[program]]\nname = \"p\"\nthreads = 1\nseconds = 0.1\ntraits = {}";
    let many = mix(&format!(
        "[machine]\nfrom = \"core:2 pu:1\"\n{program}\ncopies = 33"
    ));
    let error = trial::comings(&many, 2, 1).unwrap_err();
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
    let cast = cast(&three);
    let error = run(&three, &cast, Scheduler::Oracle)
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("3 programs, and the machine has 2 domains"),
        "{error}"
    );
}

#[test]
fn a_script_that_cannot_go_on_names_itself_and_the_run() {
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
    let error = Role::measure(&mix.programs[0], &mix, &machine(&mix), 1).unwrap_err();
    let said = error.to_string();
    let want = "'stuck' alone on 1 core: program 'stuck': all its threads wait for one another";
    assert!(said.starts_with(want), "{said}");
    assert!(said.ends_with("role 1, step 1 waits for lock 0"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arrivals_are_the_seeds_alone_in_order_and_as_many_as_said(
        seed: u64,
        rate in 0.01..50.0f64,
        count in 1..400u32,
        stay in prop::option::of(0.1..100.0f64),
    ) {
        let stay = stay.map_or(String::new(), |mean| format!("stay_s = {mean}"));
        let mut mix = mix(&format!(
            "{ONE_CORE}\n[arrivals]\nrate_per_s = {rate}\ncount = {count}\n{stay}"
        ));
        mix.protocol.seed = seed;
        let come = |seed| trial::comings(&mix, 1, seed).unwrap();
        let all = come(seed);
        prop_assert_eq!(&all, &come(seed));
        prop_assert_ne!(&all, &come(seed ^ 1));
        prop_assert_eq!(all.len(), count as usize);
        prop_assert!(all.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns));
        prop_assert!(all.iter().all(|c| c.leaves_ns.is_none_or(|ns| ns >= c.at_ns)));
        let mut names: Vec<_> = all.iter().map(|coming| &coming.name).collect();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), all.len());
        // The last of n comes after n / rate, give or take five of its deviations.
        let (n, last_s) = (f64::from(count), all[all.len() - 1].at_ns as f64 / 1e9);
        prop_assert!((last_s * rate - n).abs() < 5.0 * n.sqrt() + 5.0);
    }
}
