// SPDX-License-Identifier: GPL-2.0-only
//! `usher sim mix`: what it answers, and what it says of files that make no
//! sense.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;

use common::{World, stderr, stdout};
use serde_json::Value;

/// Two programs on eight cores, done in a moment.
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
    assert!(page.contains("SIMULATED: machine and programs are models"));
    assert!(page.contains("<svg") && !page.contains("src=\"http"));
    let result: Value =
        serde_json::from_slice(&fs::read(out.join("result.json")).unwrap()).unwrap();
    assert_eq!(result["simulated"], true);
    for scheduler in ["linux", "equal", "casas", "usher"] {
        trace(&out.join(format!("trace-{scheduler}.json")), scheduler);
    }
}

/// Every CPU and program has a track, and slices lie within the tracks.
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
    // The command that it was is in the answer.
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
    assert_eq!(runs[0]["arrivals"]["came"], 8);
    assert_eq!(runs[0]["arrivals"]["left"], 8);
}

/// Exit status and line of a mix that fails, without where its file is.
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

#[test]
fn files_and_options_that_make_no_sense_are_one_line_and_status_125() {
    let machine = "[machine]\nfrom = \"core:2 pu:1\"\n";
    let script = |roles: &str| {
        format!(
            "{machine}[[program]]\nname = \"p\"\n[program.script]\nqueues = [2]\nroles = [{roles}]\n"
        )
    };
    let crosswise =
        "{ threads = 1, steps = [{ lock = 0 }, { work = { ns = 1e6 } }, { lock = 1 }] },
        { threads = 1, steps = [{ lock = 1 }, { work = { ns = 1e6 } }, { lock = 0 }] }";
    let storm = "{ threads = 1, steps = [{ work = { ns = 1e6 } }, { put = 0 }, { take = 0 },
        { again = { to = 1, times = 4000000000 } }] }";
    let slow = "{ threads = 1, steps = [{ work = { ns = 1 } }, { again = { to = 0, times = 4000000000 } }] }";
    let cases = [
        (
            SMALL.replace("seconds = 2", "seconds = -2"),
            &[][..],
            "FILE:9: program 'ferret': seconds: must be a positive number, not -2",
        ),
        (SMALL.replace("core:4 pu", "cores:4 pu"), &[], "cores:4"),
        (
            SMALL.replace("package:2 numa:1 core:4 pu:1", "/nowhere.xml"),
            &[],
            "/nowhere.xml: there is no such file or directory",
        ),
        (
            SMALL.replace("\"ferret\"", "\"firefox\""),
            &[],
            "FILE:8: program 'firefox': parsec: no program 'firefox'; there are blackscholes,",
        ),
        (
            format!("{SMALL}copies = 200"),
            &[],
            "'FILE': 201 programs would be there at once, on 8 CPUs; the most is 128",
        ),
        (
            script(crosswise),
            &[],
            "program 'p': all its threads wait for one another, since",
        ),
        (
            script(storm),
            &[],
            "program 'p': role 0, step 2: more than 4000000 steps at 0.00",
        ),
        (
            script(slow),
            &["--events-max", "100000"],
            "'p' alone on 1 core: more than 100000 events by 0.000 s of virtual time",
        ),
        (
            script("{ threads = 1, steps = [{ take = 7 }] }"),
            &[],
            "program 'p': script: role 0, step 0: there is no queue 7",
        ),
        (
            SMALL.to_owned(),
            &["--against", "linus"],
            "invalid value 'linus' for '--against <LIST>'",
        ),
        (
            SMALL.to_owned(),
            &["--max-seconds", "-1"],
            "seconds must be a positive number",
        ),
        (
            SMALL.to_owned(),
            &["--max-seconds", "0.01"],
            "alone on 1 core it takes more than 0.1 s; give it less work",
        ),
        (
            format!("{SMALL}copies = 9"),
            &["--against", "linux,oracle"],
            "10 programs, and the machine has 2 domains",
        ),
    ];
    for (text, args, want) in cases {
        let (status, line) = refused(&text, args);
        assert_eq!(status, 125, "{line}");
        assert!(
            line.starts_with("usher: ") && line.contains(want),
            "{want}\n{line}"
        );
    }
    let missing = World::new().run(&["sim", "mix", "/nowhere.toml"]);
    let said = "usher: reading the mix '/nowhere.toml': No such file or directory\n";
    assert_eq!(
        (missing.status.code(), stderr(&missing)),
        (Some(125), said.to_owned())
    );
}

/// The examples are read, and their machines, too; running them takes longer.
#[test]
fn the_examples_make_sense() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sim");
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let mix = usher_sim::mixfile::SimMix::read(&path).unwrap();
        let source = usher_topology::Source::parse(&mix.machine_source()).unwrap();
        let machine = usher_topology::load(source).unwrap();
        usher_sim::trial::comings(&mix, machine.cpus.len(), 1).unwrap();
        count += 1;
    }
    assert_eq!(count, 4);
}
