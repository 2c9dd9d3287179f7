// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures mixes and profiles of short real programs on this machine. NTT and ANTT of the results
//! are computed a second time, independently of the code under test.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use usher_act::ActConfig;
use usher_host::engine::EngineConfig;
use usher_host::launch::LaunchSpec;
use usher_host::mix::{MixError, MixEvent, MixFile, MixOptions, run_mix};
use usher_host::profile::{
    ProfileEvent, ProfileOptions, ProfileTarget, default_counts, profile, seat_of,
};
use usher_model::Topology;
use usher_report::data::{MixResult, PolicyRole, SpanMode};
use usher_topology::{Source, load};

struct Bench {
    dir: TempDir,
    topology: Topology,
}

impl Bench {
    fn new() -> Self {
        let machine = load(Source::ThisMachine).unwrap();
        let usable = usher_topology::usable_cpus(Path::new("/")).unwrap();
        Self {
            dir: tempfile::tempdir().unwrap(),
            topology: machine.restrict(&usable).unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self) -> EngineConfig {
        EngineConfig::new(self.topology.clone(), ActConfig::new(self.path("run")))
    }

    fn mix(&self, text: &str) -> MixFile {
        let path = self.path("mix.toml");
        fs::write(&path, text).unwrap();
        MixFile::read(&path).unwrap()
    }

    fn options(&self, policies: &[&str]) -> MixOptions {
        MixOptions {
            policies: policies.iter().map(|&p| p.to_owned()).collect(),
            store: Some(self.path("profiles.db")),
            alone_repeats: 1,
            ..MixOptions::default()
        }
    }

    fn run(&self, text: &str, options: &MixOptions) -> Result<MixResult, MixError> {
        self.run_with_events(text, options, &mut |_| ())
    }

    fn run_with_events(
        &self,
        text: &str,
        options: &MixOptions,
        on_event: &mut dyn FnMut(MixEvent<'_>),
    ) -> Result<MixResult, MixError> {
        let never = AtomicBool::new(false);
        run_mix(&self.mix(text), &self.config(), options, &never, on_event)
    }

    /// Returns the processes with the directory of this test in their command line.
    fn survivors(&self) -> Vec<String> {
        let marker = self.dir.path().to_str().unwrap().to_owned();
        let own = std::process::id().to_string();
        let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            name.parse::<i32>().ok().filter(|_| name != own)
        });
        pids.filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline")).ok())
            .filter(|command| command.contains(&marker))
            .collect()
    }
}

/// A mix of two programs that use 0.1 s of CPU time each.
const QUICK: &str = r#"
title = "Two quick ones"
[protocol]
repeats = 2
rounds = 2
[[setup]]
run = "seq 60000 > numbers"
unless_exists = "numbers"
[[program]]
name = "sorts"
class = "serial"
run = ["sort", "-r", "numbers"]
[[program]]
name = "counts"
weight = 3
run = ["python3", "-c", "import time\nwhile time.process_time() < 0.1: pass"]
"#;

#[test]
fn a_mix_runs_under_every_policy() {
    let bench = Bench::new();
    let names = ["linux", "equal", "casas", "usher", "linux#2", "linux-bare"];
    let mut rounds = Vec::new();
    let result = bench.run_with_events(QUICK, &bench.options(&names), &mut |event| {
        if let MixEvent::Round { policy, round, .. } = event {
            rounds.push((round, policy.to_owned()));
        }
    });
    let result = result.unwrap();
    assert_eq!(
        result
            .policies
            .iter()
            .map(|p| p.name.as_str())
            .collect::<Vec<_>>(),
        names
    );
    assert_eq!(
        (result.protocol.repeats_min, result.protocol.rounds),
        (2, 2)
    );
    assert_eq!((rounds.len(), rounds[0].0, rounds[11].0), (12, 1, 2));
    assert_ne!(
        rounds[0].1, rounds[6].1,
        "another policy starts the second round"
    );
    assert_eq!(result.policies[0].role, PolicyRole::Baseline);
    assert_eq!(result.policies[4].role, PolicyRole::BaselineAgain);
    check_curves(&bench, &result);
    for policy in &result.policies {
        assert_eq!(policy.rounds.len(), 2);
        policy
            .rounds
            .iter()
            .for_each(|round| check_round(&bench, &result, round));
    }
    let compared = result.policies[3].comparison.as_ref().unwrap();
    assert_eq!(compared.antt.unwrap().n, 2);
    assert_eq!(bench.survivors(), [""; 0]);
}

fn check_curves(bench: &Bench, result: &MixResult) {
    let counts = default_counts(&bench.topology);
    for program in &result.programs {
        let points = program.curve.as_ref().unwrap().points();
        assert_eq!(points.len(), counts.len());
        let best = points
            .iter()
            .map(|p| 1.0 / p.rate)
            .fold(f64::INFINITY, f64::min);
        assert_eq!(program.alone_best_seconds, Some(best));
        assert_eq!(
            program.curve_source,
            "curve measured by this command, 1 run per point"
        );
    }
}

/// Computes NTT and ANTT independently of the code under test, and checks that all spans are within
/// the machine and the round.
fn check_round(bench: &Bench, result: &MixResult, round: &usher_report::data::RoundResult) {
    let mut ntts = Vec::new();
    for (program, facts) in round.programs.iter().zip(&result.programs) {
        assert!(program.reps >= 2 && program.seconds.len() == program.reps as usize);
        let mean = program.seconds.iter().sum::<f64>() / f64::from(program.reps);
        let ntt = mean / facts.alone_best_seconds.unwrap();
        assert!((program.ntt.unwrap() / ntt - 1.0).abs() < 1e-9);
        ntts.push(ntt);
    }
    let antt = (ntts[0] + 3.0 * ntts[1]) / 4.0;
    assert!((round.antt.unwrap() / antt - 1.0).abs() < 1e-9);
    for facts in &result.programs {
        let own: Vec<_> = round
            .timeline
            .iter()
            .filter(|s| s.program == facts.name)
            .collect();
        assert!(!own.is_empty(), "{} has no span", facts.name);
        for span in own {
            assert!(span.start_s >= 0.0 && span.end_s > span.start_s);
            assert!(span.cpus.is_subset(&bench.topology.all_cpus()) && !span.cpus.is_empty());
            assert!(!round.abstained || span.mode == SpanMode::Shared);
        }
    }
}

#[test]
fn curves_come_from_the_store_the_second_time() {
    let bench = Bench::new();
    let mut options = bench.options(&["linux"]);
    options.rounds = Some(1);
    let first = bench.run(QUICK, &options).unwrap();
    let mut measured = 0;
    let mut count =
        |event: MixEvent<'_>| measured += usize::from(matches!(event, MixEvent::Alone { .. }));
    let second = bench.run_with_events(QUICK, &options, &mut count).unwrap();
    assert_eq!(measured, 0);
    for (a, b) in first.programs.iter().zip(&second.programs) {
        assert_eq!(b.curve_source, "curve from the profile store, 1 run");
        let (a, b) = (a.alone_best_seconds.unwrap(), b.alone_best_seconds.unwrap());
        assert!((a / b - 1.0).abs() < 1e-9);
    }
    options.remeasure = true;
    let mut measured = 0;
    let mut count =
        |event: MixEvent<'_>| measured += usize::from(matches!(event, MixEvent::Alone { .. }));
    bench.run_with_events(QUICK, &options, &mut count).unwrap();
    assert_eq!(measured, 2 * default_counts(&bench.topology).len());
}

#[test]
fn a_missing_program_is_reported_before_anything_runs() {
    let bench = Bench::new();
    let text = r#"
[[setup]]
run = "echo > made"
[[program]]
name = "there"
run = ["true"]
[[program]]
name = "missing"
package = "no-such-package, another"
run = ["no-such-program-anywhere"]
"#;
    let error = bench.run(text, &bench.options(&["linux"])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the program 'missing' cannot be started: running 'no-such-program-anywhere': No such file or directory; \
         on Debian: apt install no-such-package another"
    );
    assert_eq!(error.code(), 127);
    assert!(!bench.path("made").exists());
}

#[test]
fn a_failing_program_ends_the_mix_with_its_standard_error() {
    let bench = Bench::new();
    let text = |limit: u32| {
        format!(
            r#"
[[program]]
name = "dies"
run = 'echo x >> count; test $(wc -l < count) -lt {limit} || {{ echo no more >&2; exit 3; }}'
[[program]]
name = "stays"
run = ["python3", "-c", "import time\nwhile time.process_time() < 0.2: pass", "{}"]
"#,
            bench.dir.path().display()
        )
    };
    // The program runs alone once per core count, and then fails in the first round.
    let runs = default_counts(&bench.topology).len() as u32;
    let message = "program 'dies' ended with exit status 3 under 'usher'; standard error of the program: no more";
    let error = bench
        .run(&text(runs + 2), &bench.options(&["usher"]))
        .unwrap_err();
    assert_eq!(error.to_string(), message);
    assert_eq!(bench.survivors(), [""; 0]);
    fs::remove_file(bench.path("count")).unwrap();
    let error = bench.run(&text(1), &bench.options(&["usher"])).unwrap_err();
    assert_eq!(
        error.to_string(),
        message.replace("under 'usher'", "when run alone")
    );
}

#[test]
fn an_interrupted_mix_leaves_nothing_behind() {
    let bench = Bench::new();
    let cancel = AtomicBool::new(false);
    let text = format!(
        "[[program]]\nname = \"a\"\nrun = \"python3 -c pass {0}\"\n\
         [[program]]\nname = \"b\"\nrun = \"(setsid python3 -c 'while True: pass' {0} &) ; exit 0\"\n",
        bench.dir.path().display()
    );
    let mut cancel_soon = |event: MixEvent<'_>| {
        if matches!(event, MixEvent::Repetition { .. }) {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let (mix, config) = (bench.mix(&text), bench.config());
    let options = bench.options(&["equal"]);
    let error = run_mix(&mix, &config, &options, &cancel, &mut cancel_soon).unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !bench.survivors().is_empty() {
        assert!(
            std::time::Instant::now() < deadline,
            "{:?}",
            bench.survivors()
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn setup_that_fails_or_creates_nothing_is_reported() {
    let bench = Bench::new();
    let text = |run: &str, unless_exists: &str| {
        format!(
            "[[setup]]\nrun = \"{run}\"\n{unless_exists}\n[[program]]\nname = \"a\"\nrun = \"true\"\n"
        )
    };
    let options = bench.options(&["linux"]);
    let error = bench
        .run(&text("echo bad >&2; exit 9", ""), &options)
        .unwrap_err();
    let message = "the setup command 'sh -c echo bad >&2; exit 9' ended with exit status 9; standard error of the program: bad";
    assert_eq!(error.to_string(), message);
    let error = bench
        .run(&text("true", "unless_exists = \"x\""), &options)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the setup command 'sh -c true' did not create the file x"
    );
}

#[test]
fn a_hung_program_times_out() {
    let bench = Bench::new();
    let text = "[protocol]\ntimeout_seconds = 0.3\n[[program]]\nname = \"a\"\nrun = [\"cat\"]\nstdin = \"pipe\"\n\
                [[setup]]\nrun = \"mkfifo pipe\"\n";
    // No process writes to the pipe, so opening it blocks for ever.
    let text = text.replace("[\"cat\"]\nstdin = \"pipe\"", "\"cat < pipe\"");
    let error = bench.run(&text, &bench.options(&["linux"])).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a repetition of the program 'a' when run alone did not end"),
        "{error}"
    );
}

#[test]
fn a_time_limit_reduces_rounds_and_repetitions() {
    let bench = Bench::new();
    let mut options = bench.options(&["linux", "equal"]);
    options.max_seconds = Some(0.001);
    let result = bench.run(QUICK, &options).unwrap();
    assert_eq!(
        (result.protocol.repeats_min, result.protocol.rounds),
        (1, 1)
    );
    assert_eq!(
        result.protocol.notes,
        [
            "the mix ran 1 round of 1 repetition instead of 2 of 2, because more would exceed the \
             time limit of the mix"
        ]
    );
}

#[test]
fn a_profile_seats_the_program_on_each_count() {
    let bench = Bench::new();
    let out = bench.path("seats");
    let script = format!(
        "grep Cpus_allowed_list /proc/self/status >> {}",
        out.display()
    );
    let target = ProfileTarget {
        name: "asks".to_owned(),
        spec: LaunchSpec::new(["sh", "-c", &script]),
        ok_exit_codes: vec![0],
    };
    let options = ProfileOptions {
        repeats: 2,
        precision: 0.0,
        ..ProfileOptions::default()
    };
    let never = AtomicBool::new(false);
    let mut runs = Vec::new();
    let mut on_event = |event: ProfileEvent<'_>| match event {
        ProfileEvent::Run(run) => runs.push((run.cores, run.repetition)),
        ProfileEvent::Busy(text) => panic!("{text}"),
    };
    let measured = profile(bench.config(), &target, &options, &never, &mut on_event).unwrap();
    let counts = default_counts(&bench.topology);
    let up = counts.iter().map(|&n| (n, 1));
    let down = counts.iter().rev().map(|&n| (n, 2));
    assert_eq!(runs, up.chain(down).collect::<Vec<_>>());
    let seats_text = fs::read_to_string(&out).unwrap();
    let seats: Vec<_> = seats_text
        .lines()
        .map(|l| l.split_whitespace().last().unwrap())
        .collect();
    for ((n, _), seat) in runs.iter().zip(seats) {
        assert_eq!(seat_of(&bench.topology, *n).to_string(), seat);
    }
    assert_eq!(measured.curve.points().len(), counts.len());
    assert!(measured.points.iter().all(|p| p.seconds.len() == 2));

    let most = bench.topology.cores.len() as u32;
    for given in [0, most + 1] {
        let counts = Some(vec![1, given]);
        let options = ProfileOptions {
            counts,
            ..options.clone()
        };
        let error = profile(bench.config(), &target, &options, &never, &mut |_| ()).unwrap_err();
        let message = format!("the number of cores must be from 1 to {most}, not {given}");
        assert_eq!(error.to_string(), message);
    }
}
