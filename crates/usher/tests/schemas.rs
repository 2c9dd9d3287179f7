// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the JSON Schemas of `docs/schema`: the files equal what `usher schema` prints, and real
//! answers of the commands are valid.
//!
//! After a change of an answer: `UPDATE_EXPECT=1 cargo test -p usher --test schemas`. `docs/json.md`
//! states which changes are permitted.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use common::{Sleeper, World, stderr, stdout};
use expect_test::expect_file;
use serde_json::Value;

/// Commands with answers that need a kernel with sched_ext, and `sim casas` and `sim slurm`, which take
/// minutes in a debug build; unit tests check their answers.
const WITHOUT_ANSWER_HERE: [&str; 7] = [
    "sim casas",
    "sim slurm",
    "sched start",
    "sched stop",
    "sched set",
    "sched stats",
    "sched explain",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema")
}

fn commands(world: &World) -> Vec<String> {
    let list = stdout(&world.run(&["schema"]));
    list.lines().map(str::to_owned).collect()
}

fn schema(world: &World, command: &str) -> String {
    let words: Vec<&str> = ["schema", "--"]
        .into_iter()
        .chain(command.split(' '))
        .collect();
    let output = world.run(&words);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn the_files_of_the_documentation_equal_the_printed_schemas() {
    let world = World::new();
    let mut files = BTreeSet::new();
    for command in commands(&world) {
        let name = format!("{}.json", command.replace(" --", "-").replace(' ', "-"));
        let text = schema(&world, &command);
        let value: Value = serde_json::from_str(&text).unwrap();
        jsonschema::meta::validate(&value).unwrap();
        assert_eq!(
            value["$schema"],
            "https://json-schema.org/draft/2020-12/schema"
        );
        expect_file![folder().join(&name)].assert_eq(&text);
        files.insert(name);
    }
    let present = fs::read_dir(folder()).unwrap();
    let present = present.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(present.collect::<BTreeSet<_>>(), files);
    let page = fs::read_to_string(folder().join("../json.md")).unwrap();
    for command in commands(&world) {
        assert!(page.contains(&format!("`{command}`")), "{command}");
    }
}

/// Returns the names of the types and fields in the daemon's interface, which describes them itself.
fn interface_names() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/org.usher.Usher1.varlink");
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let words = lines.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
    words.map(str::to_owned).collect()
}

/// Collects the paths of fields without a description, except fields of the daemon's interface
/// (`known`). The field of a variant is described by its variant.
fn undescribed(node: &Value, path: &str, known: &BTreeSet<String>, found: &mut Vec<String>) {
    let is_variant = path.contains("/oneOf/") && node.get("description").is_some();
    if let Some(Value::Object(fields)) = node.get("properties").filter(|_| !is_variant) {
        let lacking = fields.iter().filter(|(name, field)| {
            let is_described = field.get("description").is_some();
            !is_described && !known.contains(*name)
        });
        found.extend(lacking.map(|(name, _)| format!("{path}/{name}")));
    }
    match node {
        Value::Object(map) => {
            for (key, value) in map {
                let of_interface = known.contains(key) && path.ends_with("/$defs");
                if !of_interface {
                    undescribed(value, &format!("{path}/{key}"), known, found);
                }
            }
        }
        Value::Array(list) => {
            for (at, value) in list.iter().enumerate() {
                undescribed(value, &format!("{path}/{at}"), known, found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_field_has_a_description() {
    const ANSWERS_OF_THE_DAEMON: [&str; 4] = ["status", "top", "explain", "daemon reload"];
    let world = World::new();
    let (interface, none) = (interface_names(), BTreeSet::new());
    assert!(
        ["State", "programs"]
            .iter()
            .all(|name| interface.contains(*name))
    );
    let mut found = Vec::new();
    for command in commands(&world) {
        let schema: Value = serde_json::from_str(&schema(&world, &command)).unwrap();
        // `doctor` contains the state of the daemon.
        let contains_types = command == "doctor";
        let known = match ANSWERS_OF_THE_DAEMON.contains(&command.as_str()) || contains_types {
            true => &interface,
            false => &none,
        };
        undescribed(&schema, &command, known, &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_check_of_descriptions_finds_a_field_without_one() {
    let schema = serde_json::json!({
        "properties": {"a": {"description": "A."}, "b": {"type": "string"}},
        "$defs": {"T": {"properties": {"c": {}}}}
    });
    let mut found = Vec::new();
    undescribed(&schema, "x", &BTreeSet::new(), &mut found);
    assert_eq!(found, ["x/b", "x/$defs/T/c"]);
}

#[test]
fn an_unknown_command_is_refused_with_a_similar_one() {
    let world = World::new();
    let output = world.run(&["schema", "statsu"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stderr(&output).contains("similar: 'status'"),
        "{}",
        stderr(&output)
    );
}

/// Validates answers, and notes the commands.
struct Validator<'a> {
    world: &'a World,
    seen: BTreeSet<String>,
}

impl Validator<'_> {
    fn run(&mut self, command: &str, args: &[&str]) -> Value {
        let mut words: Vec<&str> = command.split(' ').collect();
        words.extend(args);
        // Options precede the words of a program.
        words.insert(0, "--json");
        let output = self.world.run(&words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        let text = stdout(&output);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(value.is_object(), "{command}: {text}");
        let schema: Value = serde_json::from_str(&schema(self.world, command)).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .map(|e| e.to_string())
            .collect();
        assert!(errors.is_empty(), "{command}: {errors:?} in {text}");
        // The schema states the type, so it rejects another document.
        assert!(!validator.is_valid(&Value::from(0)), "{command}");
        self.seen.insert(command.to_owned());
        value
    }
}

const MIX: &str = r#"
[protocol]
repeats = 1
[[program]]
name = "p"
run = ["true"]
"#;

const SIM_MIX: &str = r#"
title = "small"
[machine]
from = "package:2 numa:1 core:4 pu:1"
[protocol]
repetitions = 1
[[program]]
parsec = "ferret"
seconds = 2
"#;

fn write(world: &World, name: &str, text: &str) -> String {
    let path = world.path(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn answers_of_all_commands_are_valid() {
    let mut world = World::new();
    let record = world.path("record.jsonl").to_str().unwrap().to_owned();
    let config = write(&world, "usher.toml", "[[rule]]\nuser = 0\n");
    world.daemon(&["--record", &record, "--config", &config]);
    let all = commands(&world).into_iter().collect();
    let mut validator = Validator {
        world: &world,
        seen: BTreeSet::new(),
    };
    with_daemon(&mut validator);
    validator.run("replay", &[&record]);
    validator.run("undo", &[]);
    of_profiles(&mut validator);
    of_slurm(&mut validator);
    without_daemon(&mut validator);
    validator
        .seen
        .extend(WITHOUT_ANSWER_HERE.map(str::to_owned));
    assert_eq!(validator.seen, all);
}

fn with_daemon(validator: &mut Validator<'_>) {
    let (sleeper, background) = (Sleeper::start(), Sleeper::start());
    let pid = sleeper.pid().to_string();
    let attached = validator.run("attach", &[&pid]);
    assert_eq!(attached["attached"][0]["pid"], sleeper.pid());
    let answer = validator.run("bg --attach", &[&background.pid().to_string()]);
    assert_eq!(answer["attached"][0]["policy"], "usher");
    let state = validator.run("status", &[]);
    assert_eq!(state["programs"].as_array().unwrap().len(), 2);
    validator.run("top", &[]);
    validator.run("explain", &[]);
    validator.run("doctor", &[]);
    validator.run("daemon reload", &[]);
    let detached = validator.run("detach", &[&pid]);
    assert_eq!(detached["detached"].as_array().unwrap().len(), 1);
    drop(background);
    validator.run("wait", &[]);
    validator.run("daemon stop", &[]);
}

fn of_profiles(validator: &mut Validator<'_>) {
    let world = validator.world;
    let measure = ["--force", "--cores", "1", "--repeats", "1", "--", "true"];
    validator.run("profile", &measure);
    // A disturbed measurement is not stored.
    let point = r#"{"source":"repetition","cores":1,"rate":0.5,"relative_error":0.01,"at_s":5,
        "runs":2}"#;
    let file = write(
        world,
        "profiles.json",
        &format!(
            r#"{{"format":"usher-profiles","version":1,"profiles":[{{"name":"zip",
            "executable":"build-id:0a1b","arguments":"-p2","machine":"1 x [other]","runs":2,
            "at_s":5,"points":[{point}]}}]}}"#
        ),
    );
    validator.run("profile import", &[&file]);
    let list = validator.run("profile list", &[]);
    assert!(!list["profiles"].as_array().unwrap().is_empty());
    validator.run("profile show", &["zip"]);
    validator.run("profile export", &["zip"]);
    let to = world.path("exported.json");
    validator.run("profile export", &["zip", "--out", to.to_str().unwrap()]);
    validator.run("profile rm", &["zip"]);
}

fn of_slurm(validator: &mut Validator<'_>) {
    let world = validator.world;
    let job = ["--job", "1", "--user", "u", "--name", "n"];
    let size = ["--requested", "2", "--elapsed", "1"];
    let record = validator.run("slurm export", &[&job[..], &size[..]].concat());
    let record = write(world, "record.json", &record.to_string());
    let table = world.path("jobs.json");
    let table = table.to_str().unwrap();
    let merged = validator.run("slurm merge", &[&record, "--into", table]);
    assert_eq!(merged["merged"], 1);
    validator.run("slurm report", &[table]);
}

fn without_daemon(validator: &mut Validator<'_>) {
    let world = validator.world;
    let machine = "package:1 core:2 pu:1";
    validator.run("topo", &["--from", machine]);
    validator.run("sched status", &[]);
    validator.run("schema", &[]);
    let programs = r#"{"programs":[{"name":"a","curve":{"1":1.0,"2":1.9}}]}"#;
    let programs = write(world, "programs.json", programs);
    validator.run("plan", &["--topology", machine, "--programs", &programs]);
    validator.run("man", &[world.path("man").to_str().unwrap()]);
    let mix = write(world, "mix.toml", MIX);
    let out = world.path("report");
    let out = out.to_str().unwrap();
    let options = ["--force", "--against", "linux", "--max-seconds", "1"];
    validator.run(
        "mix",
        &[&[&mix as &str, "--out", out], &options[..]].concat(),
    );
    let mix = write(world, "sim.toml", SIM_MIX);
    validator.run("sim mix", &[&mix]);
    validator.run("sim smt", &["--seeds", "1"]);
    let small = [
        "--machine",
        "die:2 core:2",
        "--stride",
        "210",
        "--runs",
        "2",
    ];
    validator.run("sim profiles", &[&small[..], &["--seconds", "2"]].concat());
    validator.run("sim fuzz", &["1"]);
    let small = ["--programs", "1", "--machine", "core:2 pu:1"];
    validator.run("sim advise", &small);
    let options = ["--force", "--sweep", "1", "--", "sleep", "0.15"];
    validator.run("advise", &options);
}

#[test]
fn topo_lists_cpus_that_are_offline_or_outside_of_the_cgroup() {
    let world = World::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../topology/tests/fixtures");
    let topo = |name: &str| {
        let archive = fixtures.join(format!("{name}.tar.gz"));
        let mut tar = std::process::Command::new("tar");
        let tar = tar.arg("-xzf").arg(archive).arg("-C").arg(world.path("."));
        assert!(tar.status().unwrap().success());
        let capture = world.path(name);
        world
            .json(&["topo", "--from", capture.to_str().unwrap()])
            .unwrap()
    };
    let sets = |answer: &Value| [answer["offline"].clone(), answer["disallowed"].clone()];
    let offline = topo("xeon-offline-16");
    assert_eq!(sets(&offline), ["2,5,13-14", ""]);
    let cgroup = topo("opteron-cgroup-32");
    assert_eq!(sets(&cgroup), ["", "6-31"]);
    let described = world.json(&["topo", "--from", "core:2 pu:1"]);
    assert_eq!(sets(&described.unwrap()), ["", ""]);
}
