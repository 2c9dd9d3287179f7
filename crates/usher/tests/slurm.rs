// SPDX-License-Identifier: GPL-2.0-only
//! `usher slurm export`, `merge` and `report`, and the epilog that exports records.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use common::{World, stderr, stdout, wait_for};
use rustix::process::{Pid, Signal, kill_process_group};
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
fn a_merged_file_that_is_already_gone_is_no_error() {
    let cluster = Cluster::new();
    cluster.write("a.json", record("n1", 1).to_string());
    // Another path to the same file.
    let again = cluster.world.path("records/../records");
    let output = cluster.merge_with(&["--remove", again.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&answer["merged"], &answer["known"]),
        (&json!(1), &json!(1))
    );
    assert!(!cluster.records().join("a.json").exists());
}

#[test]
fn the_answer_of_a_merge_counts_kinds_of_jobs() {
    let cluster = Cluster::new();
    let (records, table) = (cluster.records(), cluster.table());
    let merge = || {
        let paths = [records.to_str().unwrap(), "--into", table.to_str().unwrap()];
        stdout(
            &cluster
                .world
                .run(&[&["slurm", "merge"], &paths[..]].concat()),
        )
    };
    cluster.write("a.json", record("n1", 1).to_string());
    assert!(merge().ends_with("has 1 kind of job\n"));
    let mut other = record("n1", 2);
    other["user"] = json!("bob");
    cluster.write("b.json", other.to_string());
    assert!(merge().ends_with("1 known, 0 skipped; the table has 2 kinds of jobs\n"));
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

/// The words of an export of a job that requested this number of CPUs.
fn export_of(requested: &str) -> Vec<&str> {
    let job = [
        "slurm", "export", "--job", "1", "--user", "u", "--name", "n",
    ];
    let times = ["--requested", requested, "--elapsed", "1"];
    [&job[..], &times].concat()
}

#[test]
fn export_writes_the_profiles_of_this_kind_of_machine() {
    let cluster = Cluster::new();
    let world = &cluster.world;
    let machine = world.json(&export_of("2")).unwrap()["machine"].clone();
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
    let script = ["--script", script.to_str().unwrap()];
    let base = [&export_of("48")[..], &script].concat();
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

/// What the fake scontrol prints for job 7. The name of the job contains blanks, quotes and a field.
const JOB: &str = "JobId=7 JobName=a $(touch evil) 'b NumCPUs=99 UserId=alice(1000) \
    StartTime=2026-01-01T00:00:00 NumNodes=1 NumCPUs=4 Comment=x StartTime=2020-01-01T00:00:00 \
    NumCPUs=98 X=1";

/// The epilog with a fake scontrol that prints the file `job`, and does not answer before the file
/// `go` exists.
struct Epilog {
    cluster: Cluster,
}

impl Epilog {
    fn new(job: &str) -> Self {
        let cluster = Cluster::new();
        let world = &cluster.world;
        let bin = world.path("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(world.path("job"), format!("{job}\n")).unwrap();
        fs::write(world.path("go"), "").unwrap();
        let scontrol = bin.join("scontrol");
        let fake = r#"#!/bin/sh
            until [ -e go ]; do sleep 0.01; done
            case "$1" in
            show) [ "$2" = job ] && cat job || printf 'n%s\n' 1 2 3 4 5 6 ;;
            write) printf ab > "$4" ;;
            esac"#;
        fs::write(&scontrol, fake).unwrap();
        fs::set_permissions(&scontrol, Permissions::from_mode(0o755)).unwrap();
        symlink(env!("CARGO_BIN_EXE_usher"), bin.join("usher")).unwrap();
        Self { cluster }
    }

    /// Returns the call of the epilog for job 7 of alice, in a process group of its own.
    fn command(&self) -> Command {
        let world = &self.cluster.world;
        let epilog = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/slurm/epilog");
        let mut command = Command::new(epilog);
        for (name, value) in world.usher(&[]).get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        for name in [
            "SLURM_JOB_NAME",
            "SLURM_CPUS_ON_NODE",
            "SLURM_JOB_START_TIME",
            "SLURM_JOB_CPUS_PER_NODE",
        ] {
            command.env_remove(name);
        }
        let path = std::env::var("PATH").unwrap();
        command
            .env("PATH", format!("{}:{path}", world.path("bin").display()))
            .env("USHER_SLURM_DIR", self.cluster.records())
            .env("SLURM_JOB_ID", "7")
            .env("SLURM_JOB_USER", "alice")
            .env("SLURMD_NODENAME", "node 1")
            .current_dir(world.path("."))
            .process_group(0);
        command
    }

    fn run(&self) {
        succeeds_without_output(&mut self.command());
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.cluster.records()).unwrap();
        files.map(|entry| entry.unwrap().path()).collect()
    }

    /// Waits for the record, beside which no other file remains.
    fn record(&self) -> Value {
        wait_for("the record", || match &self.files()[..] {
            [file] if file.extension().is_some_and(|end| end == "json") => {
                let hidden = file.file_name()?.as_encoded_bytes().starts_with(b".");
                (!hidden).then(|| serde_json::from_slice(&fs::read(file).unwrap()).unwrap())
            }
            _ => None,
        })
    }

    /// Waits until all processes of the epilog have ended, and returns the files that they wrote.
    fn files_at_the_end(&self) -> Vec<PathBuf> {
        // All processes inherit this pipe. A reader sees its end when the last one has ended.
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        self.run();
        drop(writer);
        let mut nothing = Vec::new();
        fs::File::from(reader).read_to_end(&mut nothing).unwrap();
        self.files()
    }
}

fn succeeds_without_output(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
}

#[test]
fn the_epilog_exports_a_record_and_never_fails() {
    let epilog = Epilog::new(JOB);
    let world = &epilog.cluster.world;
    succeeds_without_output(epilog.command().env_remove("SLURM_JOB_ID"));
    succeeds_without_output(
        epilog
            .command()
            .env("USHER_SLURM_DIR", world.path("missing")),
    );
    assert_eq!(epilog.files(), Vec::<PathBuf>::new());
    epilog.run();
    let record = epilog.record();
    assert_eq!(record["name"], "a%20$(touch%20evil)%20'b%20NumCPUs=99");
    assert_eq!(
        (&record["requested_cpus"], &record["job"]),
        (&json!(4), &json!(7))
    );
    assert_eq!(record["node"], "node%201");
    assert_eq!(record["script"], "2-25027-25609");
    // The start is not the one of the comment, six years earlier.
    let elapsed_s = record["elapsed_s"].as_f64().unwrap();
    let started_s = record["ended_at_s"].as_f64().unwrap() - elapsed_s;
    assert!(started_s > 1.76e9, "{record}");
    assert!(!world.path("evil").exists());
}

/// Slurm kills the process group of a script that has ended.
#[test]
fn the_export_survives_the_process_group_of_the_epilog() {
    let epilog = Epilog::new(JOB);
    let go = epilog.cluster.world.path("go");
    fs::remove_file(&go).unwrap();
    let mut child = epilog.command().spawn().unwrap();
    let group = Pid::from_child(&child);
    assert!(child.wait().unwrap().success());
    // An empty group is an error.
    let _ = kill_process_group(group, Signal::KILL);
    fs::write(&go, "").unwrap();
    assert_eq!(epilog.record()["job"], 7);
}

#[test]
fn the_start_of_the_job_is_never_midnight() {
    let without = JOB.replace("StartTime", "Start");
    let epilog = Epilog::new(&without);
    assert_eq!(epilog.files_at_the_end(), Vec::<PathBuf>::new());
    // The variable counts more than the field.
    for job in [&without, JOB] {
        let epilog = Epilog::new(job);
        let mut command = epilog.command();
        succeeds_without_output(command.env("SLURM_JOB_START_TIME", "1700000000"));
        let record = epilog.record();
        let elapsed_s = record["elapsed_s"].as_f64().unwrap();
        assert_eq!(
            record["ended_at_s"].as_f64().unwrap() - elapsed_s,
            1_700_000_000.0
        );
    }
}

#[test]
fn the_request_is_that_of_the_node() {
    // CPUs of each node, the name of this node, and its CPUs.
    let cases = [
        ("24,8", "n1", 24),
        ("24,8", "n2", 8),
        ("24(x2),8,4(x3)", "n2", 24),
        ("24(x2),8,4(x3)", "n3", 8),
        ("24(x2),8,4(x3)", "n6", 4),
        ("48(x6)", "n5", 48),
    ];
    for (list, node, expected) in cases {
        let epilog = Epilog::new(&JOB.replace("NumNodes=1", "NumNodes=6"));
        let mut command = epilog.command();
        command
            .env("SLURM_JOB_CPUS_PER_NODE", list)
            .env("SLURM_NODELIST", "n[1-6]")
            .env("SLURMD_NODENAME", node);
        succeeds_without_output(&mut command);
        assert_eq!(epilog.record()["requested_cpus"], expected, "{list} {node}");
    }
    // NumCPUs is the sum over all nodes.
    for nodes in ["", "2", "1-2"] {
        let epilog = Epilog::new(&JOB.replace("NumNodes=1", &format!("NumNodes={nodes}")));
        assert_eq!(epilog.files_at_the_end(), Vec::<PathBuf>::new(), "{nodes}");
    }
}

#[test]
fn a_name_that_looks_like_an_option_is_a_name() {
    let epilog = Epilog::new(JOB);
    let mut command = epilog.command();
    succeeds_without_output(command.env("SLURM_JOB_NAME", "--json"));
    assert_eq!(epilog.record()["name"], "--json");
}

/// The last task of an array has the number of the array, for which scontrol prints all tasks.
#[test]
fn the_epilog_reads_its_own_task_of_an_array() {
    let other = "JobId=6 ArrayJobId=7 ArrayTaskId=1 JobName=x UserId=bob(1) NumNodes=1 NumCPUs=1 ";
    let task = JOB.replace("JobId=7", "JobId=7 ArrayJobId=7 ArrayTaskId=2");
    let epilog = Epilog::new(&format!("{other}\n{task}\n{other}"));
    epilog.run();
    let record = epilog.record();
    assert_eq!(record["requested_cpus"], 4);
    assert_eq!(record["name"], "a%20$(touch%20evil)%20'b%20NumCPUs=99");
}

#[test]
fn scripts_of_killed_exports_are_removed() {
    let epilog = Epilog::new(JOB);
    let script = |name: &str| epilog.cluster.records().join(format!(".script.{name}"));
    let (old, new) = (script("old"), script("new"));
    for path in [&old, &new] {
        fs::write(path, "ab").unwrap();
    }
    let day_ago = SystemTime::now() - Duration::from_secs(86_400);
    let file = fs::File::options().write(true).open(&old).unwrap();
    file.set_modified(day_ago).unwrap();
    let files = epilog.files_at_the_end();
    assert!(!files.contains(&old) && files.contains(&new), "{files:?}");
    assert_eq!(files.len(), 2, "{files:?}");
    // A signal ends the export, which then removes its script.
    let epilog = Epilog::new(JOB);
    let scontrol = epilog.cluster.world.path("bin/scontrol");
    let fake = "#!/bin/sh\ncase $1 in show) cat job ;; *) kill $(ps -o ppid= $PPID) ;; esac";
    fs::write(scontrol, fake).unwrap();
    assert_eq!(epilog.files_at_the_end(), Vec::<PathBuf>::new());
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
