// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs `integrations/slurm/job_submit.lua` with a fake `slurm` table, under each installed version
//! of Lua, with advice that the crate has written.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;
use usher_store::jobs::{JobRecord, JobTable, advice, escape, script_hash};

const INTERPRETERS: [&str; 4] = ["lua5.1", "lua5.2", "lua5.3", "lua5.4"];
const NOW_S: i64 = 1_800_000_000;

/// The fake of Slurm's functions. `submit` prints the result, the messages and the changed fields.
const FAKE: &str = r#"
slurm = { SUCCESS = 0, ERROR = -1, messages = {} }
function slurm.log_user(format, ...) table.insert(slurm.messages, string.format(format, ...)) end
function slurm.log_info(format, ...) print("info " .. string.format(format, ...)) end
dofile(arg[1])
usher_options.path = arg[2]
function submit(job)
    slurm.messages = {}
    local result = slurm_job_submit(job, {}, 1000)
    print("result " .. tostring(result), table.concat(slurm.messages, "|"),
        tostring(job.admin_comment), tostring(job.min_cpus), tostring(job.cpus_per_task))
end
"#;

fn script_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/slurm/job_submit.lua")
}

/// Returns the installed interpreters.
fn interpreters() -> Vec<&'static str> {
    let runs = |name: &&str| Command::new(name).arg("-v").output().is_ok();
    INTERPRETERS.into_iter().filter(runs).collect()
}

/// Runs Lua code after [`FAKE`] under every interpreter, and returns the common output.
fn lua(code: &str, advice: &Path) -> Option<String> {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("test.lua");
    fs::write(&file, format!("{FAKE}\n{code}")).unwrap();
    let mut common: Option<String> = None;
    for name in interpreters() {
        let output = Command::new(name)
            .arg(&file)
            .args([&script_path(), advice])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            common.as_ref().is_none_or(|other| *other == text),
            "{name}: {text}"
        );
        common = Some(text);
    }
    common
}

/// Adds a job; its program has 12 useful CPUs of 48.
fn add(table: &mut JobTable, job: u64, user: &[u8], name: &[u8], script: Option<&[u8]>) {
    let point = |cores: f64, rate: f64| {
        json!({"source": "repetition", "cores": cores, "rate": rate, "relative_error": 0.01,
            "at_s": 5, "runs": 1})
    };
    let record = json!({
        "format": "usher-job-record", "version": 1, "node": "n1", "job": job,
        "user": escape(user), "name": escape(name), "script": script.and_then(script_hash),
        "machine": "m", "cpus_per_core": 1, "requested_cpus": 48, "elapsed_s": 10.0,
        "ended_at_s": 1000,
        "programs": [{"profile": {"name": "md prog", "executable": "hash:0a", "arguments": "",
            "machine": "m", "runs": 1, "at_s": 5,
            "points": [point(1.0, 1.0), point(12.0, 9.5), point(48.0, 10.0)]}}]
    });
    table.add(&JobRecord::read(record.to_string().as_bytes(), NOW_S).unwrap());
}

struct Advice {
    _dir: TempDir,
    path: PathBuf,
}

fn written(text: impl AsRef<[u8]>) -> Advice {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("jobs.advice");
    fs::write(&path, text).unwrap();
    Advice { _dir: dir, path }
}

fn known_jobs() -> Advice {
    let mut table = JobTable::new();
    for job in 1..=3 {
        add(&mut table, job, b"alice", b"md", None);
    }
    add(
        &mut table,
        4,
        b"bob",
        b"odd name\n\t%\xff",
        Some(b"#!/bin/sh\nsrun md\n"),
    );
    written(advice(&table))
}

macro_rules! lua_or_skip {
    ($code:expr, $advice:expr) => {
        match lua($code, $advice) {
            Some(text) => text,
            None => {
                usher_skip::skip!("no Lua is installed (package lua5.4 or lua5.1)");
                return;
            }
        }
    };
}

const TEXT: &str = "requested 48 CPUs, scales to 12 (3 runs): try -c 12";

#[test]
fn a_known_job_gets_a_message_and_a_comment() {
    let jobs = known_jobs();
    let code = r#"
        submit{user_name = "alice", name = "md", cpus_per_task = 48, min_cpus = 48}
        submit{user_name = "alice", name = "md", num_tasks = 48, cpus_per_task = 65534,
            min_cpus = 48, admin_comment = "x"}
    "#;
    let text = lua_or_skip!(code, &jobs.path);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], format!("result 0\t{TEXT}\tusher: {TEXT}\t48\t48"));
    let tasks = TEXT.replace("-c", "-n");
    assert_eq!(
        lines[1],
        format!("result 0\t{tasks}\tx; usher: {tasks}\t48\t65534")
    );
}

#[test]
fn scripts_and_executables_are_found_where_the_name_is_new() {
    let jobs = known_jobs();
    let code = r##"
        submit{user_name = "bob", name = "new", script = "#!/bin/sh\nsrun md\n", cpus_per_task = 48}
        submit{user_name = "eve", name = "new", script = "#!/bin/sh\nsrun md\n", cpus_per_task = 48}
        submit{user_name = "bob", name = "odd name\n\t%\255", cpus_per_task = 48}
        submit{user_name = "bob", name = "new", argv = {"/opt/md prog", "x"}, cpus_per_task = 48}
        submit{user_name = "bob", name = "new", argv = {"other"}, cpus_per_task = 48}
        submit{user_name = "eve", name = "new", argv = {"md prog"}, cpus_per_task = 48}
        submit{user_name = "-", name = "new", argv = {"md prog"}, cpus_per_task = 48}
        submit{name = "new", argv = {"md prog"}, cpus_per_task = 48}
    "##;
    let text = lua_or_skip!(code, &jobs.path);
    let found: Vec<bool> = text
        .lines()
        .map(|line| line.contains("try -c 12"))
        .collect();
    // The scripts and executables of another user are not used.
    let expected = [true, false, true, true, false, false, false, false];
    assert_eq!(found, expected, "{text}");
}

#[test]
fn jobs_without_reason_for_advice_are_unchanged() {
    let jobs = known_jobs();
    let code = r#"
        submit{user_name = "alice", name = "md", cpus_per_task = 12}
        submit{user_name = "alice", name = "md"}
        submit{user_name = "alice", name = "md", num_tasks = 4, cpus_per_task = 12}
        submit{user_name = "alice", name = "md", min_nodes = 2, cpus_per_task = 48}
        submit{user_name = "carol", name = "md", cpus_per_task = 48}
        submit{}
        submit{user_name = 5, name = {}, script = false, argv = 7, cpus_per_task = "many"}
    "#;
    let text = lua_or_skip!(code, &jobs.path);
    for line in text.lines() {
        assert!(line.starts_with("result 0\t\tnil\t"), "{line}");
    }
    assert_eq!(text.lines().count(), 7);
}

#[test]
fn min_cpus_changes_only_with_the_option_and_for_one_task() {
    let jobs = known_jobs();
    let code = r#"
        usher_options.set_min_cpus = true
        submit{user_name = "alice", name = "md", cpus_per_task = 48, min_cpus = 48}
        submit{user_name = "bob", name = "new", argv = {"md prog"}, cpus_per_task = 48, min_cpus = 48}
        submit{user_name = "alice", name = "md", min_cpus = 48}
        submit{user_name = "alice", name = "md", num_tasks = 48, min_cpus = 48}
        submit{user_name = "eve", name = "md", cpus_per_task = 48, min_cpus = 48}
    "#;
    let text = lua_or_skip!(code, &jobs.path);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with("\t12\t12"), "{text}");
    assert!(lines[1].ends_with("\t12\t12"), "{text}");
    assert!(lines[2].ends_with("\t12\tnil"), "{text}");
    // 48 tasks need 48 CPUs.
    assert!(
        lines[3].ends_with("\t48\tnil") && lines[3].contains("try -n 12"),
        "{text}"
    );
    assert!(lines[4].ends_with("\t48\t48"), "{text}");
}

#[test]
fn a_missing_or_damaged_file_changes_no_job() {
    let code = r#"submit{user_name = "alice", name = "md", cpus_per_task = 48}"#;
    let none = Path::new("/nonexistent/advice");
    assert_eq!(lua_or_skip!(code, none), "result 0\t\tnil\tnil\t48\n");
    let good = "job\talice\tmd\t12\t48\t3\n";
    let cases: [&[u8]; 9] = [
        b"",
        b"usher-advice\t2\njob\talice\tmd\t12\t48\t3\n",
        b"usher-advice\t1",
        b"usher-advice\t1\njob\talice\tmd\t12\t48\t3",
        b"usher-advice\t1\njob\talice\tmd\t0\t48\t3\n",
        b"usher-advice\t1\njob\talice\tmd\t-1\t48\t3\n",
        b"usher-advice\t1\njob\talice\tmd\t1e9\t48\t3\n",
        b"usher-advice\t1\njob\talice\tmd\t12\t48\t3\t9\n",
        b"usher-advice\t1\n\0\0\xff\njob\talice\t\t12\t48\t3\n",
    ];
    for text in cases {
        let file = written(text);
        assert_eq!(
            lua_or_skip!(code, &file.path),
            "result 0\t\tnil\tnil\t48\n",
            "{text:?}"
        );
    }
    let directory = TempDir::new().unwrap();
    assert_eq!(
        lua_or_skip!(code, directory.path()),
        "result 0\t\tnil\tnil\t48\n"
    );
    // A long line and a damaged line hide no other line.
    let long = "x".repeat(100_000);
    let file = written(format!("usher-advice\t1\n{long}\nos.exit(1)\n{good}"));
    assert!(lua_or_skip!(code, &file.path).contains(TEXT));
}

#[test]
fn errors_inside_slurm_are_caught() {
    let jobs = known_jobs();
    let code = r#"
        slurm.log_user = function() error("no") end
        submit{user_name = "alice", name = "md", cpus_per_task = 48}
        local angry = setmetatable({}, { __index = function() error("field") end })
        print(slurm_job_submit(angry, {}, 0))
        print(slurm_job_modify(angry, {}, {}, 0))
    "#;
    let text = lua_or_skip!(code, &jobs.path);
    assert!(text.contains("result 0\t"), "{text}");
    assert_eq!(text.matches("info usher: no advice: ").count(), 2, "{text}");
    assert!(text.ends_with("0\n0\n"), "{text}");
}

#[test]
fn both_sides_compute_the_same_hash() {
    let scripts = [
        "a".to_owned(),
        "\u{e9}\n".repeat(20_000),
        "z".repeat(65_536),
    ];
    for script in scripts {
        let mut table = JobTable::new();
        add(&mut table, 1, b"bob", b"old", Some(script.as_bytes()));
        let file = written(advice(&table));
        let body = TempDir::new().unwrap();
        let path = body.path().join("script");
        fs::write(&path, &script).unwrap();
        let code = format!(
            r#"local script = io.open("{}", "rb"):read(65537)
            submit{{user_name = "bob", name = "new", script = script, cpus_per_task = 48}}"#,
            path.display()
        );
        let text = lua_or_skip!(&code, &file.path);
        assert!(
            text.contains("(1 run): try -c 12"),
            "{} bytes: {text}",
            script.len()
        );
    }
}
