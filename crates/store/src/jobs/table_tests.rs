// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of records and of the merged table.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::jobs::{RECORD_BYTES_MAX, advice, escape};

const NOW_S: i64 = 1_800_000_000;

/// Returns a record of a job; its program has these points.
fn record(node: &str, job: u64, machine: &str, points: &[(f64, f64)]) -> Value {
    let point = |&(cores, rate): &(f64, f64)| {
        json!({"source": "repetition", "cores": cores, "rate": rate, "relative_error": 0.01,
            "at_s": 1000 + job, "runs": 1})
    };
    let points: Vec<Value> = points.iter().map(point).collect();
    json!({
        "format": "usher-job-record", "version": 1, "cluster": "c", "node": node, "job": job,
        "user": "alice", "name": "md", "script": "2-25027-25609", "machine": machine,
        "cpus_per_core": 1, "requested_cpus": 48, "used_cpu_s": 600.0, "elapsed_s": 100.0,
        "ended_at_s": 1000 + job,
        "programs": [{"useful_cpus": 12, "profile": {"name": "md", "executable": "hash:0a",
            "arguments": "", "machine": machine, "runs": 1, "at_s": 1000 + job,
            "points": points}}]
    })
}

const FLAT: [(f64, f64); 3] = [(1.0, 1.0), (12.0, 9.5), (48.0, 10.0)];

fn read(record: &Value) -> Result<JobRecord, RecordError> {
    JobRecord::read(record.to_string().as_bytes(), NOW_S)
}

fn table(records: &[Value]) -> JobTable {
    let mut table = JobTable::new();
    for one in records {
        table.add(&read(one).unwrap());
    }
    table.limit();
    table
}

#[test]
fn a_record_counts_once() {
    let one = record("n1", 1, "m", &FLAT);
    let mut merged = table(std::slice::from_ref(&one));
    assert_eq!(merged.add(&read(&one).unwrap()), Added::Known);
    assert_eq!(merged, table(&[one]));
    let job = &merged.summaries()[0];
    assert_eq!((job.runs, job.requested_cpus), (1, 48));
    assert_eq!(job.used_cpus, Some(6.0));
    assert_eq!(
        job.useful.map(|cpus| (cpus.useful, cpus.measured_to)),
        Some((12, 48))
    );
    assert_eq!(job.lost_cpu_s(), 3600.0);
    assert_eq!(job.requested_cpu_s(), 4800.0);
}

#[test]
fn curves_of_one_machine_are_merged_and_other_machines_kept_apart() {
    let slow = [(1.0, 1.0), (12.0, 6.0), (48.0, 10.0)];
    let merged = table(&[
        record("n1", 1, "small", &[(1.0, 1.0), (12.0, 9.6)]),
        record("n2", 2, "small", &[(1.0, 1.0), (48.0, 10.0)]),
        record("n3", 3, "large", &slow),
    ]);
    let jobs = merged.summaries();
    let useful = |job: &JobSummary| job.useful.map(|cpus| (cpus.useful, cpus.measured_to));
    assert_eq!(
        (jobs[0].machine.as_str(), useful(&jobs[0])),
        ("large", Some((39, 48)))
    );
    // The merged curve has the points 1, 12 and 48.
    assert_eq!(
        (jobs[1].machine.as_str(), useful(&jobs[1])),
        ("small", Some((12, 48)))
    );
    assert_eq!((jobs[0].runs, jobs[1].runs), (1, 2));
    // The advice is the largest one of both machines.
    let text = advice(&merged);
    assert!(text.contains("job\talice\tmd\t39\t48\t3\n"), "{text}");
}

#[test]
fn the_latest_profile_of_a_node_replaces_the_earlier_one() {
    let merged = table(&[
        record("n1", 2, "m", &[(1.0, 2.0), (48.0, 20.0)]),
        record("n1", 1, "m", &[(1.0, 1.0), (48.0, 1.0)]),
    ]);
    assert_eq!(merged.profiles.len(), 1);
    assert_eq!(
        merged.profiles[0].entry().unwrap().profile.points[0]
            .point
            .rate,
        2.0
    );
}

#[test]
fn a_job_with_an_unmeasured_program_gets_no_advice_until_it_is_measured() {
    let with = |job: u64, unmeasured: u32| {
        let mut one = record("n1", job, "m", &FLAT);
        one["unmeasured"] = json!(unmeasured);
        one
    };
    let merged = table(&[with(1, 0), with(2, 1)]);
    assert_eq!(merged.summaries()[0].useful, None);
    assert_eq!(advice(&merged), "usher-advice\t1\n");
    let merged = table(&[with(2, 1), with(3, 0), with(1, 0)]);
    assert_eq!(
        merged.summaries()[0].useful.map(|cpus| cpus.useful),
        Some(12)
    );
    // A record without programs changes nothing.
    let mut none = with(4, 0);
    none["programs"] = json!([]);
    let merged = table(&[with(3, 0), none]);
    assert_eq!(
        merged.summaries()[0].useful.map(|cpus| cpus.useful),
        Some(12)
    );
}

#[test]
fn rejects_records_that_violate_a_rule() {
    let changed = |field: &str, value: Value| {
        let mut one = record("n1", 1, "m", &FLAT);
        one[field] = value;
        read(&one).unwrap_err().to_string()
    };
    for text in ["a b", "\u{1b}[2J", "a\tb", "", "%0a", "é"] {
        assert!(
            changed("user", json!(text)).contains("user must have"),
            "{text:?}"
        );
        assert!(
            changed("name", json!(text)).contains("name must have"),
            "{text:?}"
        );
    }
    assert!(changed("cluster", json!(" ")).contains("cluster"));
    assert!(changed("script", json!("../../etc")).contains("script"));
    assert!(changed("requested_cpus", json!(0)).contains("from 1 to"));
    assert!(changed("elapsed_s", json!(-1.0)).contains("negative"));
    assert!(changed("elapsed_s", json!(1e300)).contains("ten years"));
    assert!(changed("used_cpu_s", json!(1e300)).contains("used_cpu_s"));
    assert!(changed("ended_at_s", json!(NOW_S * 2)).contains("future"));
    assert!(changed("machine", json!("other")).contains("another machine"));
    assert!(changed("version", json!(2)).contains("version 2"));
    assert!(changed("format", json!("x")).contains("required"));
    assert!(changed("extra", json!(1)).contains("unknown field"));
    let deep = "[".repeat(100_000);
    assert!(JobRecord::read(deep.as_bytes(), NOW_S).is_err());
    assert!(JobRecord::read(b"", NOW_S).is_err());
}

#[test]
fn the_longest_record_fits() {
    let mut one = record("n1", 1, "m", &FLAT);
    one["programs"] = json!(vec![one["programs"][0].clone(); 64]);
    let text = read(&one).unwrap().write(NOW_S).unwrap();
    assert!((text.len() as u64) < RECORD_BYTES_MAX);
}

#[test]
fn dropped_identities_are_not_merged_again() {
    let records: Vec<Value> = (1..=5).map(|job| record("n1", job, "m", &FLAT)).collect();
    let mut merged = table(&records);
    merged.limit_to(limits(2, 10, 10));
    assert_eq!(merged.seen.len(), 2);
    for one in &records {
        assert_ne!(merged.add(&read(one).unwrap()), Added::New);
    }
    assert_eq!(merged.summaries()[0].runs, 5);
    let (jobs, dropped) = (merged.jobs.len(), merged.limit_to(limits(2, 0, 10)));
    assert_eq!((jobs, dropped), (1, 1));
}

fn limits(seen: usize, jobs: usize, profiles: usize) -> Limits {
    Limits {
        seen,
        jobs,
        profiles,
    }
}

/// One merge of many records has the result of many merges of one record.
#[test]
fn a_merge_finds_the_entries_of_the_table_and_its_own() {
    let mut records: Vec<Value> = Vec::new();
    for job in 0..60 {
        let node = format!("n{}", job % 3);
        let mut one = record(&node, 100 - job, &format!("m{}", job % 2), &FLAT);
        one["user"] = json!(format!("u{}", job % 5));
        one["cpus_per_core"] = json!(1 + job % 2);
        one["programs"][0]["profile"]["executable"] = json!(format!("hash:0{}", job % 4));
        records.push(one);
    }
    let expected = table(&records);
    let mut merged = table(&records[..20]);
    let mut merge = JobMerge::new(&mut merged);
    for one in &records {
        merge.add(&read(one).unwrap());
    }
    assert_eq!(merge.finish(), 0);
    assert_eq!(merged, expected);
    assert_eq!((merged.jobs.len(), merged.profiles.len()), (10, 12));
}

#[test]
fn a_merge_keeps_at_most_twice_the_limit_and_the_latest_entries() {
    let mut merged = JobTable::new();
    let mut merge = JobMerge::with_limits(&mut merged, limits(30, 5, 4));
    for job in 1..=100 {
        let mut one = record(&format!("n{job}"), job, "m", &FLAT);
        one["user"] = json!(format!("u{job}"));
        assert_eq!(merge.add(&read(&one).unwrap()), Added::New);
        let [seen, jobs, profiles] = merge.lengths();
        assert!(seen <= 60 && jobs <= 10 && profiles <= 8);
    }
    assert_eq!(merge.finish(), 95 + 96);
    assert_eq!((merged.jobs.len(), merged.profiles.len()), (5, 4));
    assert!(merged.jobs.iter().all(|group| group.last_at_s > 1095));
}

proptest! {
    #[test]
    fn the_order_of_records_does_not_matter(
        jobs in prop::collection::vec((0..3_u8, 0..2_u8, 1.0..20.0_f64), 1..12),
        seed: u64,
    ) {
        let all: Vec<Value> = jobs.iter().enumerate().map(|(at, (node, machine, rate))| {
            let points = [(1.0, 1.0), (12.0, *rate), (48.0, *rate * 1.05)];
            record(&format!("n{node}"), at as u64, &format!("m{machine}"), &points)
        }).collect();
        let mut other = all.clone();
        other.sort_by_key(|one| blake3::hash(format!("{seed}{one}").as_bytes()).to_hex().to_string());
        let (a, b) = (table(&all), table(&other));
        prop_assert_eq!(&a, &b);
        prop_assert_eq!(JobTable::read(a.write().unwrap().as_bytes()).unwrap(), a);
    }

    #[test]
    fn any_name_stays_one_field_of_the_advice(user: Vec<u8>, name: Vec<u8>) {
        prop_assume!(!user.is_empty() && !name.is_empty());
        let mut one = record("n1", 1, "m", &FLAT);
        one["user"] = json!(escape(&user));
        one["name"] = json!(escape(&name));
        prop_assume!(one["user"].as_str().unwrap().len() <= 1024);
        let text = advice(&table(&[one]));
        for line in text.lines().skip(1) {
            prop_assert_eq!(line.split('\t').count(), 6, "{:?}", line);
            prop_assert!(line.bytes().all(|byte| byte == b'\t' || (0x21..0x7f).contains(&byte)));
        }
    }
}
