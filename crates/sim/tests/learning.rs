// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of programs that run repeatedly on a simulated machine without PMU, and of the curves that
//! policy `usher` gets from their runs.

#![allow(clippy::unwrap_used)]

use usher_policy::Usher;
use usher_policy::variation::LOSS_MAX;
use usher_sim::learning::{
    LearningCampaign, LearningRow, gains, variation_losses, with_equal_durations,
};
use usher_sim::machine::Machine;
use usher_sim::mix::MixEntry;
use usher_sim::parsec::programs;
use usher_sim::reruns::{CompletedRun, RerunError, RerunSettings, Reruns, run};
use usher_sim::setup::EvaluationSetup;
use usher_topology::Source;

/// Two programs on four cores in two LLC domains.
struct Fixture {
    machine: Machine,
    setup: EvaluationSetup,
    programs: Vec<MixEntry>,
}

impl Fixture {
    fn new(names: [&str; 2]) -> Self {
        let spec = "package:1 die:2 numa:1 core:2 pu:1".to_owned();
        let topology = usher_topology::load(Source::Synthetic(spec)).unwrap();
        let mut setup = EvaluationSetup::new(programs().unwrap());
        let machine = Machine::new(topology, setup.costs.clone());
        setup
            .models
            .retain(|model| names.contains(&model.name.as_str()));
        let models = &setup.models;
        let programs = with_equal_durations(models, &machine, &setup.kernel, 3.0, 1, 2).unwrap();
        Self {
            machine,
            setup,
            programs,
        }
    }

    fn campaign(&self, variation: bool, seed: u64) -> LearningRow {
        let campaign = LearningCampaign {
            machine: &self.machine,
            kernel: &self.setup.kernel,
            programs: &self.programs,
            runs: 5,
            variation,
            seed,
        };
        let rows = campaign.run(&[vec![0, 1]], 1, &|_| {}).unwrap();
        rows.into_iter().next().unwrap()
    }

    fn usher(&self, settings: &RerunSettings) -> Result<Reruns, RerunError> {
        let policy = Usher::new(self.machine.topology().clone());
        let kernel = &self.setup.kernel;
        run(
            &self.programs,
            &self.machine,
            kernel,
            Box::new(policy),
            settings,
        )
    }
}

fn settings(variation: bool, seed: u64) -> RerunSettings {
    RerunSettings {
        runs: 5,
        variation,
        spread_s: 0.5,
        seconds_max: 600.0,
        seed,
    }
}

#[test]
fn programs_take_equal_times_alone() {
    let fixture = Fixture::new(["ferret", "freqmine"]);
    for entry in &fixture.programs {
        let seconds = entry.alone_best_seconds(&fixture.machine);
        assert!(
            (seconds / 3.0 - 1.0).abs() < 0.2,
            "{} {seconds}",
            entry.name
        );
    }
}

#[test]
fn a_seed_determines_the_runs() {
    let fixture = Fixture::new(["ferret", "freqmine"]);
    let runs = |seed| fixture.usher(&settings(true, seed)).unwrap();
    assert_eq!(runs(1), runs(1));
    assert_ne!(runs(1), runs(2));
}

#[test]
fn later_runs_use_the_points_of_earlier_runs() {
    let fixture = Fixture::new(["ferret", "freqmine"]);
    let reruns = fixture.usher(&settings(true, 1)).unwrap();
    for runs in &reruns.runs {
        assert!(runs.len() >= 5, "{runs:?}");
        assert_eq!(runs[0].points, 0, "the store is empty before the first run");
        assert_eq!(runs[0].varied_seconds, 0.0, "the first run is ordinary");
        assert!(runs[1].points >= 1);
        assert!(runs[4].points >= 2, "{runs:?}");
    }
    let varied = reruns.runs.iter().flatten();
    assert!(varied.map(|run| run.varied_seconds).sum::<f64>() > 0.0);
}

#[test]
fn runs_without_variation_learn_no_curve() {
    let fixture = Fixture::new(["ferret", "freqmine"]);
    let reruns = fixture.usher(&settings(false, 1)).unwrap();
    for run in reruns.runs.iter().flatten() {
        assert_eq!(run.varied_seconds, 0.0);
        assert!(run.points <= 1, "{run:?}");
    }
}

#[test]
fn programs_that_do_not_complete_their_runs_in_time_are_an_error() {
    let fixture = Fixture::new(["ferret", "freqmine"]);
    let short = RerunSettings {
        seconds_max: 10.0,
        ..settings(true, 1)
    };
    assert!(matches!(fixture.usher(&short), Err(RerunError::Fault(_))));
}

#[test]
fn a_campaign_compares_each_run_with_linux() {
    let fixture = Fixture::new(["ferret", "freqmine"]);
    let row = fixture.campaign(true, 1);
    assert_eq!(row, fixture.campaign(true, 1));
    assert_eq!(row.programs, ["ferret", "freqmine"]);
    assert_eq!(row.linux.varied_share, [0.0; 5]);
    for results in [&row.linux, &row.usher, &row.known] {
        assert_eq!((results.antt.len(), results.ntt.len()), (5, 5));
        assert!(
            results.ntt.iter().flatten().all(|&ntt| ntt > 0.9),
            "{results:?}"
        );
    }
    let gains = gains(std::slice::from_ref(&row), |row| &row.usher, 1);
    let ratio = gains[4].unwrap().value;
    assert!((ratio - row.usher.antt[4] / row.linux.antt[4]).abs() < 1e-12);
}

#[test]
fn the_loss_is_the_varied_time_without_the_usual_time_of_its_work() {
    let run = |seconds, varied_seconds, varied_work| CompletedRun {
        seconds,
        points: 0,
        varied_seconds,
        varied_work,
    };
    let ordinary = |seconds| run(seconds, 0.0, 0.0);
    let linux = [vec![ordinary(9.0), ordinary(11.0)], vec![ordinary(20.0); 3]];
    // Half of the work, which usually takes 5 s, takes 6 s. Runs after the first two do not count.
    let usher = [
        vec![ordinary(50.0), run(30.0, 6.0, 0.5), run(30.0, 30.0, 1.0)],
        vec![run(15.0, 15.0, 1.0), ordinary(20.0)],
    ];
    let losses = variation_losses(&linux, &usher, 2);
    for (loss, expected) in losses.iter().zip([1.0 / 20.0, -5.0 / 40.0]) {
        assert!((loss - expected).abs() < 1e-12, "{losses:?}");
    }
}

/// The bound of 5 % holds for concave curves. That of dedup, a pipeline, is not concave on few cores.
#[test]
fn variation_takes_at_most_5_percent_of_the_time_of_five_runs() {
    let mut losses = Vec::new();
    for (names, varied) in [
        (["blackscholes", "dedup"], "blackscholes"),
        (["bodytrack", "freqmine"], "bodytrack"),
    ] {
        let fixture = Fixture::new(names);
        for seed in 1..4 {
            let row = fixture.campaign(true, seed);
            let shares = row.usher.varied_share.iter();
            assert!(
                shares.sum::<f64>() > 0.1,
                "few runs of {names:?} were varied"
            );
            for (name, &loss) in row.programs.iter().zip(&row.variation_loss) {
                let limit = if name == varied {
                    LOSS_MAX
                } else {
                    2.0 * LOSS_MAX
                };
                assert!(loss <= limit, "{name}: {loss} with seed {seed}");
                losses.push(loss);
            }
        }
    }
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean <= LOSS_MAX, "{losses:?}");
}
