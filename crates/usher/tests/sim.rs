// SPDX-License-Identifier: GPL-2.0-only
//! Tests of `usher sim mix`: answers, reports and traces of small mixes, and the errors for invalid
//! files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;

use common::{World, stderr, stdout};
use serde_json::Value;

/// A mix of two programs on eight cores, which is simulated within moments.
const SMALL: &str = r#"
title = "small"
[machine]
from = "package:2 numa:1 core:4 pu:1"
[protocol]
repetitions = 2
[[program]]
parsec = "ferret"
seconds = 2
[[program]]
name = "half"
seconds = 2
traits = { serial = 0.5, frame_ms = 20 }
"#;

fn file(world: &World, text: &str) -> String {
    let path = world.path("my.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_mix_is_simulated_and_reported() {
    let world = World::new();
    let out = world.path("report");
    let file = file(&world, SMALL);
    let output = world.run(&["sim", "mix", &file, "--out", out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("SIMULATED: small, on package:2"), "{text}");
    for word in [
        "ferret",
        "half",
        "casas",
        "ANTT",
        "SIMULATED. ",
        "trace-usher.json",
    ] {
        assert!(text.contains(word), "{word}:\n{text}");
    }
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("SIMULATED: the machine and the programs are models"));
    assert!(page.contains("<svg") && !page.contains("src=\"http"));
    let result: Value =
        serde_json::from_slice(&fs::read(out.join("result.json")).unwrap()).unwrap();
    assert_eq!(result["simulated"], true);
    for scheduler in ["linux", "equal", "casas", "usher"] {
        trace(&out.join(format!("trace-{scheduler}.json")), scheduler);
    }
}

/// Checks a trace: every CPU and program has a track, and slices lie within the tracks.
fn trace(path: &Path, scheduler: &str) {
    let trace: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(trace["otherData"]["policy"], scheduler);
    assert_eq!(trace["otherData"]["simulated"], true);
    let events = trace["traceEvents"].as_array().unwrap();
    let tracks = |pid: u64, phase: &str| {
        let own = events
            .iter()
            .filter(|e| e["ph"] == phase && e["pid"] == pid);
        let mut tids: Vec<u64> = own.filter_map(|e| e["tid"].as_u64()).collect();
        tids.sort_unstable();
        tids.dedup();
        tids.retain(|&tid| tid > 0);
        tids
    };
    assert_eq!(tracks(1, "M"), (1..=8).collect::<Vec<_>>());
    assert_eq!(tracks(1, "X"), (1..=8).collect::<Vec<_>>());
    assert_eq!(tracks(2, "X"), [1, 2]);
    let slices = events.iter().filter(|e| e["ph"] == "X");
    assert!(slices.clone().all(|e| e["dur"].as_f64().unwrap() > 0.0));
    assert!(slices.clone().any(|e| e["name"] == "ferret"));
}

#[test]
fn the_same_file_and_seed_give_the_same_answer_and_options_are_obeyed() {
    let world = World::new();
    let arrivals = "[arrivals]\nrate_per_s = 2\ncount = 8\nprograms = [\"half\"]";
    let file = file(&world, &format!("{SMALL}\n{arrivals}"));
    let answer = |args: &[&str]| {
        let mut all = vec!["sim", "mix", &file];
        all.extend(args);
        world.json(&all).unwrap()
    };
    // The answer contains the command that was run.
    let figures = |args: &[&str]| {
        let mut answer = answer(args);
        answer["result"]["protocol"]["command"].take();
        answer
    };
    assert_eq!(answer(&[]), answer(&[]));
    assert_eq!(figures(&["--seed", "1"]), figures(&[]));
    assert_ne!(figures(&["--seed", "2"])["runs"], figures(&[])["runs"]);
    let two = answer(&[
        "--against",
        "linux,usher-cold",
        "--rounds",
        "2",
        "--from",
        "core:4 pu:1",
    ]);
    let runs = two["runs"].as_array().unwrap();
    let names: Vec<_> = runs
        .iter()
        .map(|run| run["scheduler"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["linux", "linux", "usher-cold", "usher-cold"]);
    assert_eq!(two["machine"], "core:4 pu:1");
    assert_eq!(runs[0]["arrivals"]["arrived"], 8);
    assert_eq!(runs[0]["arrivals"]["departed"], 8);
}

/// Returns the exit status and the error line of a mix that fails, without the path of the file.
fn refused(text: &str, args: &[&str]) -> (i32, String) {
    let world = World::new();
    let file = file(&world, text);
    let out = world.path("report");
    let mut all = vec!["sim", "mix", &file, "--out", out.to_str().unwrap()];
    all.extend(args);
    let output = world.run(&all);
    let line = stderr(&output);
    assert_eq!(line.trim_end().lines().count(), 1, "{line}");
    assert!(output.stdout.is_empty() && !out.exists(), "{line}");
    let line = line.trim_end().replace(&file, "FILE");
    (output.status.code().unwrap(), line)
}

/// Checks that a mix is refused with this text in one line, and with status 125.
fn refuses(text: &str, args: &[&str], want: &str) {
    let (status, line) = refused(text, args);
    assert_eq!(status, 125, "{line}");
    let is_reported = line.starts_with("usher: ") && line.contains(want);
    assert!(is_reported, "{want}\n{line}");
}

#[test]
fn files_and_options_that_make_no_sense_are_one_line_and_status_125() {
    let seconds = "FILE:9: program 'ferret': seconds: must be a positive number, not -2";
    refuses(&SMALL.replace("seconds = 2", "seconds = -2"), &[], seconds);
    refuses(&SMALL.replace("core:4 pu", "cores:4 pu"), &[], "cores:4");
    let file = SMALL.replace("package:2 numa:1 core:4 pu:1", "/nowhere.xml");
    refuses(
        &file,
        &[],
        "/nowhere.xml: the file or directory does not exist",
    );
    let unknown = "FILE:8: program 'fire': parsec: unknown program 'fire'; programs: blackscholes,";
    refuses(&SMALL.replace("\"ferret\"", "\"fire\""), &[], unknown);
    let many = "'FILE': 201 programs would run at once on 8 CPUs; the maximum is 128";
    refuses(&format!("{SMALL}copies = 200"), &[], many);
    for (args, want) in [
        (
            ["--against", "linus"],
            "invalid value 'linus' for '--against <LIST>'",
        ),
        (
            ["--max-seconds", "-1"],
            "the number of seconds must be positive",
        ),
        (
            ["--max-seconds", "0.01"],
            "the program alone on 1 core takes more than 0.1 s; reduce its work",
        ),
        (
            ["--events-max", "0"],
            "invalid value '0' for '--events-max <N>'",
        ),
    ] {
        refuses(SMALL, &args, want);
    }
    let ways = "the 10 programs outnumber the machine's 2 domains";
    refuses(
        &format!("{SMALL}copies = 9"),
        &["--against", "linux,oracle"],
        ways,
    );
    let missing = World::new().run(&["sim", "mix", "/nowhere.toml"]);
    let said = "usher: reading the mix '/nowhere.toml': No such file or directory\n";
    assert_eq!(
        (missing.status.code(), stderr(&missing)),
        (Some(125), said.to_owned())
    );
}

#[test]
fn scripts_that_never_end_are_one_line_and_status_125() {
    let script = |roles: &str| {
        let machine = "[machine]\nfrom = \"core:2 pu:1\"\n";
        let program = "[[program]]\nname = \"p\"\n[program.script]\nqueues = [2]";
        format!("{machine}{program}\nroles = [{roles}]\n")
    };
    let takes = |first, then| {
        let work = "{ work = { ns = 1e6 } }";
        format!("{{ threads = 1, steps = [{{ lock = {first} }}, {work}, {{ lock = {then} }}] }},")
    };
    let crosswise = script(&(takes(0, 1) + &takes(1, 0)));
    refuses(&crosswise, &[], "program 'p': deadlock: since");
    let loop_back = "{ loop = { to = 1, times = 4000000000 } }";
    let own = format!("{{ work = {{ ns = 1e6 }} }}, {{ put = 0 }}, {{ take = 0 }}, {loop_back}");
    let endless = script(&format!("{{ threads = 1, steps = [{own}] }}"));
    refuses(&endless, &[], "more than 4000000 steps at 0.001");
    let tiny = format!("{{ work = {{ ns = 1 }} }}, {{ work = {{ ns = 1 }} }}, {loop_back}");
    let slow = script(&format!("{{ threads = 1, steps = [{tiny}] }}"));
    let events = "simulating 'p' alone on 1 core: the run exceeded its limit of 100000 simulated events at 0.000 s of virtual time";
    refuses(&slow, &["--events-max", "100000"], events);
}

/// Checks that the example files and their machines can be read. Running them would take longer.
#[test]
fn the_examples_make_sense() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sim");
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let mix = usher_sim::mixfile::SimMix::read(&path).unwrap();
        let source = usher_topology::Source::parse(&mix.machine_source()).unwrap();
        let machine = usher_topology::load(source).unwrap();
        usher_sim::trial::arrival_specs(&mix, machine.cpus.len(), 1).unwrap();
        count += 1;
    }
    assert_eq!(count, 4);
}
