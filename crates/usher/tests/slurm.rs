// SPDX-License-Identifier: GPL-2.0-only
//! `usher slurm export`, `merge` and `report`, and the epilog that exports records.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{World, stderr, stdout, wait_for};
use serde_json::{Value, json};

/// Returns a record of a job with 12 useful CPUs of 48.
fn record(node: &str, job: u64) -> Value {
    let point = |cores: f64, rate: f64| {
        json!({"source": "repetition", "cores": cores, "rate": rate, "relative_error": 0.01,
            "at_s": 5, "runs": 1})
    };
    json!({
        "format": "usher-job-record", "version": 1, "node": node, "job": job, "user": "alice",
        "name": "md", "machine": "m", "cpus_per_core": 1, "requested_cpus": 48,
        "used_cpu_s": 21600.0, "elapsed_s": 3600.0, "ended_at_s": 1000,
        "programs": [{"profile": {"name": "md", "executable": "hash:0a", "arguments": "",
            "machine": "m", "runs": 1, "at_s": 5,
            "points": [point(1.0, 1.0), point(12.0, 9.5), point(48.0, 10.0)]}}]
    })
}

struct Cluster {
    world: World,
}

impl Cluster {
    fn new() -> Self {
        let world = World::new();
        fs::create_dir(world.path("records")).unwrap();
        Self { world }
    }

    fn records(&self) -> PathBuf {
        self.world.path("records")
    }

    fn table(&self) -> PathBuf {
        self.world.path("jobs.json")
    }

    /// Writes a record that only its owner can write.
    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.records().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        path
    }

    fn merge_with(&self, options: &[&str]) -> Output {
        let (records, table) = (self.records(), self.table());
        let paths = [records.to_str().unwrap(), "--into", table.to_str().unwrap()];
        self.world
            .run(&[&["slurm", "merge", "--json"], options, &paths].concat())
    }

    /// Merges all records; returns the counts of merged, known and skipped records, and the lines
    /// of the standard error.
    fn merge(&self) -> ([u64; 3], String) {
        let output = self.merge_with(&[]);
        assert!(output.status.success(), "{}", stderr(&output));
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let count = |name: &str| value[name].as_u64().unwrap();
        (["merged", "known", "skipped"].map(count), stderr(&output))
    }

    fn report(&self, options: &[&str]) -> Output {
        let table = self.table();
        self.world
            .run(&[&["slurm", "report", table.to_str().unwrap()], options].concat())
    }
}

#[test]
fn records_count_once_and_the_report_names_the_loss() {
    let cluster = Cluster::new();
    cluster.write("a.json", record("n1", 1).to_string());
    cluster.write("b.json", record("n2", 1).to_string());
    cluster.write("copy.json", record("n1", 1).to_string());
    cluster.write("notes.txt", "no record");
    assert_eq!(cluster.merge().0, [2, 1, 0]);
    let table = fs::read(cluster.table()).unwrap();
    assert_eq!(cluster.merge().0, [0, 3, 0]);
    assert_eq!(fs::read(cluster.table()).unwrap(), table);
    let text = stdout(&cluster.report(&[]));
    let words: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        words,
        ["alice", "md", "2", "48", "6.0", "12", "96.0", "72.0", "m"]
    );
    let words: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(words, ["alice", "2", "96.0", "72.0", "75", "%"]);
    let report: Value = serde_json::from_slice(&cluster.report(&["--json"]).stdout).unwrap();
    assert_eq!(report["users"][0]["lost_cpu_hours"], 72.0);
    assert_eq!(report["jobs"][0]["useful_cpus"], 12);
    assert!(stdout(&cluster.report(&["--user", "bob"])).contains("no such jobs"));
    let advice = cluster.world.path("jobs.json.advice");
    let advice = fs::read_to_string(advice).unwrap();
    assert!(advice.contains("job\talice\tmd\t12\t48\t2\n"), "{advice}");
}

#[test]
fn malformed_and_foreign_files_are_skipped_in_one_line_each() {
    let cluster = Cluster::new();
    cluster.write("good.json", record("n1", 1).to_string());
    cluster.write("empty.json", "");
    cluster.write("bad\u{1b}[2J\n.json", "{");
    cluster.write("binary.json", [0xff, 0, 1]);
    cluster.write("deep.json", "[".repeat(500_000));
    cluster.write("huge.json", vec![b' '; (1 << 20) + 1]);
    let mut named = record("n1", 2);
    named["user"] = json!("a\u{1b}[2Jb");
    cluster.write("name.json", named.to_string());
    let open = cluster.write("open.json", record("n1", 3).to_string());
    fs::set_permissions(open, Permissions::from_mode(0o666)).unwrap();
    let target = cluster.world.path("target");
    fs::write(&target, record("n1", 4).to_string()).unwrap();
    symlink(&target, cluster.records().join("link.json")).unwrap();
    fs::create_dir(cluster.records().join("dir.json")).unwrap();
    symlink("/dev/zero", cluster.records().join("device.json")).unwrap();
    let fifo = cluster.records().join("fifo.json");
    assert!(Command::new("mkfifo").arg(fifo).status().unwrap().success());
    let (counts, lines) = cluster.merge();
    assert_eq!(counts, [1, 0, 11], "{lines}");
    assert_eq!(lines.lines().count(), 11, "{lines}");
    assert!(
        lines
            .lines()
            .all(|line| line.starts_with("usher: skipped the record '")),
        "{lines}"
    );
    assert!(!lines.contains('\u{1b}'), "{lines}");
}

#[test]
fn a_damaged_table_is_an_error_and_stays() {
    let cluster = Cluster::new();
    cluster.write("a.json", record("n1", 1).to_string());
    for text in [
        "",
        "{}",
        "[1]",
        r#"{"format":"usher-job-table","version":2}"#,
    ] {
        fs::write(cluster.table(), text).unwrap();
        let output = cluster.merge_with(&["--remove"]);
        assert_eq!(output.status.code(), Some(125), "{text}");
        assert!(
            stderr(&output).contains("reading the table"),
            "{}",
            stderr(&output)
        );
        assert_eq!(fs::read_to_string(cluster.table()).unwrap(), text);
        assert_eq!(cluster.report(&[]).status.code(), Some(125));
    }
    assert!(cluster.records().join("a.json").exists());
}

#[test]
fn merged_files_are_removed_and_skipped_files_stay() {
    let cluster = Cluster::new();
    cluster.write("a.json", record("n1", 1).to_string());
    cluster.write("bad.json", "{");
    assert!(cluster.merge_with(&["--remove"]).status.success());
    assert!(!cluster.records().join("a.json").exists());
    assert!(cluster.records().join("bad.json").exists());
    let left = fs::read_dir(cluster.world.path(".")).unwrap();
    let left = left.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    assert!(
        left.into_iter().all(|name| !name.starts_with(".jobs")),
        "a temporary file is left"
    );
    assert_eq!(fs::metadata(cluster.table()).unwrap().mode() & 0o777, 0o644);
}

#[test]
fn merges_at_the_same_time_lose_no_record() {
    let cluster = Cluster::new();
    let table = cluster.table();
    let mut running = Vec::new();
    for job in 1..=8 {
        let path = cluster.write(&format!("{job}.json"), record("n1", job).to_string());
        let mut command = cluster.world.usher(&["slurm", "merge"]);
        let child = command.arg(path).arg("--into").arg(&table).spawn().unwrap();
        running.push(child);
    }
    for mut child in running {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(cluster.merge().0, [0, 8, 0]);
}

#[test]
fn foreign_names_reach_the_report_without_control_characters() {
    let cluster = Cluster::new();
    let world = &cluster.world;
    let dir = cluster.records();
    let args = [
        "slurm",
        "export",
        "--job",
        "7",
        "--node",
        "a/b",
        "--user",
        "eve\u{1b}[2J",
    ];
    let mut command = world.usher(&args);
    command.args([
        "--name",
        "x\n\t%y",
        "--requested",
        "4",
        "--elapsed",
        "10",
        "--dir",
    ]);
    let output = command.arg(&dir).arg("no-such-program").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let files: Vec<_> = fs::read_dir(&dir).unwrap().collect();
    assert_eq!(files.len(), 1);
    assert_eq!(cluster.merge().0, [1, 0, 0]);
    let output = cluster.report(&["--color", "never"]);
    let text = stdout(&output);
    assert!(
        text.contains("eve\\u{1b}[2J") && !text.contains('\u{1b}'),
        "{text}"
    );
    let colored = stdout(&cluster.report(&["--color", "always"]));
    assert!(colored.contains("\u{1b}[1m"), "{colored}");
    let report: Value = serde_json::from_slice(&cluster.report(&["--json"]).stdout).unwrap();
    assert_eq!(report["jobs"][0]["name"], "x\n\t%y");
    assert_eq!(report["jobs"][0]["useful_cpus"], Value::Null);
}

#[test]
fn export_writes_the_profiles_of_this_kind_of_machine() {
    let cluster = Cluster::new();
    let world = &cluster.world;
    let machine = world
        .json(&[
            "slurm",
            "export",
            "--job",
            "1",
            "--user",
            "u",
            "--name",
            "n",
            "--requested",
            "2",
            "--elapsed",
            "1",
        ])
        .unwrap()["machine"]
        .clone();
    let profile = |name: &str, machine: &Value, executable: &str| {
        let mut profile = record("n1", 1)["programs"][0]["profile"].clone();
        profile["name"] = json!(name);
        profile["machine"] = machine.clone();
        profile["executable"] = json!(executable);
        profile
    };
    let document = json!({"format": "usher-profiles", "version": 1, "profiles": [
        profile("here", &machine, "hash:01"), profile("there", &json!("other"), "hash:02")]});
    fs::write(world.path("profiles.json"), document.to_string()).unwrap();
    let imported = world.run(&[
        "profile",
        "import",
        world.path("profiles.json").to_str().unwrap(),
    ]);
    assert!(imported.status.success(), "{}", stderr(&imported));
    let script = world.path("job.sh");
    fs::write(&script, "ab").unwrap();
    let base = [
        "slurm",
        "export",
        "--job",
        "1",
        "--user",
        "u",
        "--name",
        "n",
        "--requested",
        "48",
        "--elapsed",
        "1",
        "--script",
        script.to_str().unwrap(),
    ];
    let export = |more: &[&str]| world.json(&[&base[..], more].concat()).unwrap();
    let record = export(&["--since", "1"]);
    assert_eq!(record["script"], "2-25027-25609");
    assert_eq!(record["unmeasured"], 0);
    let programs = record["programs"].as_array().unwrap();
    assert_eq!(programs.len(), 1);
    assert_eq!(programs[0]["profile"]["name"], "here");
    let per_core = record["cpus_per_core"].as_u64().unwrap();
    assert_eq!(programs[0]["useful_cpus"], 12 * per_core);
    // The other program has no profile on this machine.
    assert_eq!(export(&["here", "there"])["unmeasured"], 1);
    assert_eq!(export(&["--since", "6"])["programs"], json!([]));
}

/// The epilog with a fake scontrol. The name of the job contains blanks and quotes.
#[test]
fn the_epilog_exports_a_record_and_never_fails() {
    let cluster = Cluster::new();
    let world = &cluster.world;
    let bin = world.path("bin");
    fs::create_dir(&bin).unwrap();
    let scontrol = bin.join("scontrol");
    let fake = r#"#!/bin/sh
        case "$1" in
        show) echo "JobId=7 JobName=a \$(touch evil) 'b UserId=alice(1000) NumCPUs=4 StartTime=2026-01-01T00:00:00 X=1" ;;
        write) printf ab > "$4" ;;
        esac"#;
    fs::write(&scontrol, fake).unwrap();
    fs::set_permissions(&scontrol, Permissions::from_mode(0o755)).unwrap();
    symlink(env!("CARGO_BIN_EXE_usher"), bin.join("usher")).unwrap();
    let epilog = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/slurm/epilog");
    let run = |job: Option<&str>, dir: &Path| {
        let mut command = Command::new(&epilog);
        let like = world.usher(&[]);
        for (name, value) in like.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        command
            .env("PATH", path)
            .env("USHER_SLURM_DIR", dir)
            .current_dir(world.path("."));
        command
            .env_remove("SLURM_JOB_NAME")
            .env("SLURM_JOB_USER", "alice");
        if let Some(job) = job {
            command.env("SLURM_JOB_ID", job);
        }
        let output = command.output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty());
    };
    run(None, &cluster.records());
    run(Some("7"), &world.path("missing"));
    assert_eq!(fs::read_dir(cluster.records()).unwrap().count(), 0);
    run(Some("7"), &cluster.records());
    wait_for("the record", || {
        let names = fs::read_dir(cluster.records()).unwrap();
        let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .all(|name| name.ends_with(".json") && !name.starts_with('.'))
            .then_some(())?;
        (fs::read_dir(cluster.records()).unwrap().count() == 1).then_some(())
    });
    let entry = fs::read_dir(cluster.records())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let record: Value = serde_json::from_slice(&fs::read(entry.path()).unwrap()).unwrap();
    assert_eq!(record["name"], "a%20$(touch%20evil)%20'b");
    assert_eq!(
        (&record["requested_cpus"], &record["job"]),
        (&json!(4), &json!(7))
    );
    assert_eq!(record["script"], "2-25027-25609");
    assert!(!world.path("evil").exists());
}

#[test]
fn invalid_options_are_refused() {
    let (code, line) = common::refused(&[
        "slurm",
        "export",
        "--job",
        "0",
        "--user",
        "u",
        "--name",
        "n",
        "--requested",
        "1",
        "--elapsed",
        "1",
    ]);
    assert!(code == 125 && line.contains("--job"), "{line}");
    let (code, line) = common::refused(&[
        "slurm",
        "export",
        "--job",
        "1",
        "--user",
        "u",
        "--name",
        "n",
        "--requested",
        "1",
        "--elapsed",
        "nan",
    ]);
    assert!(code == 125 && line.contains("elapsed_s"), "{line}");
    let (code, line) = common::refused(&["slurm", "merge", "x.json"]);
    assert!(code == 125 && line.contains("--into"), "{line}");
    let (code, line) = common::refused(&["slurm", "report", "/dev/zero"]);
    assert!(code == 125 && line.contains("no regular file"), "{line}");
}
