// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the text interface of `usher plan`: the documented output, errors that name program and
//! field, and a fuzz of arbitrary input.
#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use common::{machine, regular};
use proptest::prelude::*;
use serde_json::json;
use usher_policy::planfile::{plan_json, read_programs};

#[test]
fn the_output_has_the_documented_form() {
    let input = json!({"programs": [
        {"name": "swaptions", "curve": {"6": 6.0, "12": 11.5, "18": 16.0, "24": 20.0}},
        {"name": "canneal", "curve": {"6": 1.9, "12": 2.4}, "weight": 1, "llc_bytes": 8_000_000,
         "bandwidth_gbps": 3.5, "spinners": 0},
    ]});
    let out = plan_json(&regular(2, 1, 2, 6), &input.to_string()).unwrap();
    let canneal = 2.4 / 1.9;
    let expected = json!({"antt": (20.0 / 16.0 + canneal) / 2.0, "programs": [
        {"name": "swaptions", "cpus": "6-23", "cores": 18, "domains": [1, 2, 3], "ntt": 1.25,
         "mode": "seated"},
        {"name": "canneal", "cpus": "0-5", "cores": 6, "domains": [0], "ntt": canneal,
         "mode": "seated"},
    ]});
    assert_eq!(serde_json::to_value(out).unwrap(), expected);
}

#[test]
fn the_gap_is_reported_for_unequal_domains() {
    let t = machine(&vec![vec![vec![vec![1.0; 4], vec![0.5; 4]]]], 1, 0);
    let input = r#"{"programs":[{"name":"a","curve":{"1":1,"8":6}}]}"#;
    let out = plan_json(&t, input).unwrap();
    assert_eq!((out.gap, out.programs[0].cores), (Some(0.0), 8));
}

#[test]
fn more_programs_than_cores_are_left_to_the_kernel() {
    let input =
        r#"{"programs":[{"name":"a","curve":{"1":1,"2":2}},{"name":"b","curve":{"1":1,"2":1}}]}"#;
    let out = serde_json::to_value(plan_json(&regular(1, 1, 1, 1), input).unwrap()).unwrap();
    assert_eq!(out["programs"][1]["mode"], "shared");
    assert_eq!(out["antt"], 2.0);
}

#[test]
fn errors_name_the_program_and_the_field() {
    let program = |rest: &str| format!(r#"{{"programs":[{{"name":"x",{rest}}}]}}"#);
    let curve = |points: &str| program(&format!(r#""curve":{{{points}}}"#));
    let good = r#""curve":{"1":1,"2":2}"#;
    let rate = |what: &str| {
        format!("program 'x', \"curve\": progress at 1 core must be a positive number, not {what}")
    };
    let cases = [
        (curve(r#""1":0,"2":1"#), rate("0")),
        (curve(r#""1":-1,"2":1"#), rate("-1")),
        (curve(r#""1":null,"2":1"#), rate("null")),
        (curve(r#""1":"NaN","2":1"#), rate("\"NaN\"")),
        (curve(r#""1":1"#), "program 'x', \"curve\": the curve needs points at two or more numbers of cores, but has 1".into()),
        (curve(""), "program 'x', \"curve\": the curve needs points at two or more numbers of cores, but has 0".into()),
        (curve(r#""1":1,"01":1"#), "program 'x', \"curve\": the curve has two points at 1 core".into()),
        (curve(r#""1.5":1,"2":1"#), "program 'x', \"curve\": \"1.5\" is not a number of cores (1, 2, …)".into()),
        (curve(r#""0":1,"2":1"#), "program 'x', \"curve\": \"0\" is not a number of cores (1, 2, …)".into()),
        (program(r#""weight":1"#), "program 'x', \"curve\": is missing".into()),
        (program(r#""curve":[1,2]"#),
         "program 'x', \"curve\": must be an object that maps numbers of cores to progress per second, not an array".into()),
        (program(&format!(r#"{good},"weight":0"#)),
         "program 'x', \"weight\": must be a positive number, not 0".into()),
        (program(&format!(r#"{good},"spinners":1.5"#)),
         "program 'x', \"spinners\": must be a whole number of zero or more, not 1.5".into()),
        (program(&format!(r#"{good},"llc_bytes":-1"#)),
         "program 'x', \"llc_bytes\": must be a whole number of zero or more, not -1".into()),
        (program(&format!(r#"{good},"bandwidth_gbps":"much""#)),
         "program 'x', \"bandwidth_gbps\": must be zero or more, not \"much\"".into()),
        (program(&format!(r#"{good},"wieght":2"#)),
         "program 'x', \"wieght\": the field is unknown; expected name, curve, llc_bytes, bandwidth_gbps, weight, spinners, cpu_quota; a similar field exists: weight".into()),
        (program(&format!(r#"{good},"colour":2"#)),
         "program 'x', \"colour\": the field is unknown; expected name, curve, llc_bytes, bandwidth_gbps, weight, spinners, cpu_quota".into()),
        (program(&format!("{good},{good}")), "program 'x', \"curve\": is given twice".into()),
        (format!(r#"{{"programs":[{{{good}}}]}}"#), "program '#1', \"name\": is missing".into()),
        (r#"{"programs":[{"name":"","curve":{}}]}"#.into(),
         "program '#1', \"name\": must be a text of at least one character, not \"\"".into()),
        (format!(r#"{{"programs":[{{"name":"x",{good}}},{{"name":"x",{good}}}]}}"#),
         "program 'x', \"name\": another program has the same name: give each program a name of its own".into()),
        (r#"{"programs":[]}"#.into(), "invalid description of the programs: the field \"programs\" is empty; give at least one program".into()),
        (r#"{"programs":[1]}"#.into(), "invalid description of the programs: program #1 must be an object".into()),
        (r#"{"programs":1}"#.into(), "invalid description of the programs: the field \"programs\" must be an array".into()),
        (r#"{}"#.into(), "invalid description of the programs: the field \"programs\" is missing".into()),
        (r#"[]"#.into(), "invalid description of the programs: the input must be a JSON object with the field \"programs\"".into()),
        (r#"{"programs":[],"x":1}"#.into(), "invalid description of the programs: the field \"x\" is unknown; expected \"programs\"".into()),
        (r#"{"programs":[],"programs":[]}"#.into(), "invalid description of the programs: the field \"programs\" is given twice".into()),
        (r#"{"programs":"#.into(), "invalid description of the programs: EOF while parsing a value at line 1 column 12".into()),
        (curve(r#""1":NaN"#), "invalid description of the programs: expected value at line 1 column 39".into()),
    ];
    for (input, message) in cases {
        let error = read_programs(&input).unwrap_err().to_string();
        assert_eq!(error, message, "for {input}");
        assert!(!error.contains('\n'));
    }
}

#[test]
fn rates_too_far_apart_do_not_overflow() {
    let input = r#"{"programs":[{"name":"a","curve":{"1":1e-308,"9":1e308}},{"name":"b","curve":{"1":1,"2":1},"weight":1e308}]}"#;
    for t in [
        regular(1, 1, 2, 1),
        regular(1, 1, 1, 1),
        regular(1, 1, 4, 4),
    ] {
        let out = plan_json(&t, input).unwrap();
        assert!(out.antt.is_finite() && out.programs.iter().all(|p| p.ntt.is_finite()));
    }
}

proptest! {
    #[test]
    fn no_input_causes_a_panic(text in "[\\[\\]{}\":,a-z0-9. -]{0,60}") {
        let _ = read_programs(&text);
        let _ = read_programs(&format!(r#"{{"programs":[{{"name":"x",{text}}}]}}"#));
    }
}
