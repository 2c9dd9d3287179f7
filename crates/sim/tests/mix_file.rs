// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the parser of sim files. A file with all keys is accepted. For each kind of invalid
//! value, the file is rejected with a one-line error that names the line and the key.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use usher_sim::campaign::Scheduler;
use usher_sim::kernel::GroupBy;
use usher_sim::machine::Costs;
use usher_sim::mixfile::{ProgramBody, SimMix};

fn parse(text: &str) -> Result<SimMix, String> {
    SimMix::parse(Path::new("mixes/my.toml"), text).map_err(|error| error.to_string())
}

const MACHINE: &str = "[machine]\nfrom = \"core:2 pu:1\"\n";
const PROGRAM: &str = "[[program]]\nparsec = \"ferret\"\n";

#[test]
fn reads_minimal_and_complete_files() {
    let minimal = parse(&format!("{MACHINE}{PROGRAM}")).unwrap();
    assert_eq!(minimal.title, "my");
    assert_eq!(minimal.costs, Costs::default());
    assert_eq!(minimal.protocol.policies.len(), 4);
    let program = &minimal.programs[0];
    assert!(program.known && program.repeats && program.resident);
    assert_eq!((program.name.as_str(), program.copies), ("ferret", 1));

    let all = parse(
        r#"
        title = "all"
        description = "everything"
        [machine]
        from = "package:2 core:2 pu:1"
        preset = "xeon-phi-7210"
        costs = { node_gbps = 20, switch_ns = 100 }
        [kernel]
        group_by = "threads"
        slice_ns = 1000000
        [protocol]
        policies = ["linux", "casas-lending", "usher-cold", "oracle"]
        repetitions = 2
        rounds = 4
        seed = 9
        max_seconds = 100
        events_max = 1000
        [[program]]
        name = "a"
        traits = { serial = 0.2, memory = { stall = 0.3 } }
        threads = 3
        seconds = 1.5
        weight = 2
        known = false
        repeats = false
        copies = 5
        at = 7
        [[program]]
        name = "b"
        [program.script]
        roles = [{ threads = 2, steps = [{ work = { ns = 1e6 } }, { barrier = 0 }] }]
        wait = { spin-then-block = 1000 }
        [arrivals]
        rate_per_s = 2
        programs = ["b"]
        count = 10
        seconds = 20
        lifetime_s = 3
        "#,
    )
    .unwrap();
    assert_eq!(all.costs.node_gbps, 20.0);
    assert_eq!(all.costs.switch_ns, 100.0);
    assert_eq!(all.costs.refill_gbps, Costs::phi().refill_gbps);
    assert_eq!(all.kernel.group_by, GroupBy::Threads);
    assert_eq!(all.protocol.policies[1], Scheduler::CasasLending);
    assert!(
        matches!(&all.programs[0].body, ProgramBody::Traits { traits, seconds, .. }
        if traits.serial == 0.2 && *seconds == 1.5)
    );
    assert!(matches!(&all.programs[1].body, ProgramBody::Script(script) if script.threads() == 2));
    assert!(all.programs[0].resident && !all.programs[1].resident);
    assert_eq!(all.arrivals.unwrap().programs, [1]);
}

/// Asserts that a file is rejected with this one-line message.
fn rejects(text: &str, want: &str) {
    let message = parse(text).unwrap_err();
    let in_one_line = message.starts_with("mixes/my.toml:") && !message.contains('\n');
    assert!(
        in_one_line && message.contains(want),
        "{want}\n{message}\n{text}"
    );
}

#[test]
fn rejects_invalid_machine_and_protocol_with_line_and_key() {
    rejects("", "1: missing field `machine`");
    rejects(MACHINE, "1: a mix needs at least one [[program]]");
    let cases = [
        (
            "preset = \"vax\"",
            "3: machine.preset: unknown preset 'vax'; presets: opteron-6172, xeon",
        ),
        (
            "costs = { gbps = 1 }",
            "3: machine.costs: unknown field `gbps`, expected one of",
        ),
        (
            "costs = { node_gbps = 0 }",
            "3: machine.costs: node_gbps: must be positive, not 0",
        ),
        (
            "costs = { switch_ns = -1 }",
            "3: machine.costs: switch_ns: must be 0 or more, not -1",
        ),
        (
            "[kernel]\nslice = 1",
            "4: kernel.slice: the key is unknown; known keys: preset, ",
        ),
        (
            "[kernel]\ngroup_by = \"threads\"\nbalance_ns = 0",
            "5: kernel.balance_ns: must be from",
        ),
        (
            "[kernel]\nslice_ns = 1_000_000\nturn_ns = 24_000_000",
            "5: kernel.turn_ns: the key has no effect with order = \"eevdf\"",
        ),
        (
            "[kernel]\npreset = \"usher-sched\"\ngroup_by = \"programs\"",
            "5: kernel.group_by: the key has no effect with order = \"usher-sched\"",
        ),
        (
            "[protocol]\npolicies = [\"linus\"]",
            "4: unknown variant `linus`, expected one of",
        ),
        (
            "[protocol]\nseed = 1\nrounds = 0",
            "5: protocol.rounds: must be 1 or more",
        ),
        (
            "[protocol]\nmax_seconds = nan",
            "4: protocol.max_seconds: must be a positive",
        ),
    ];
    for (text, want) in cases {
        rejects(&format!("{MACHINE}{text}\n{PROGRAM}"), want);
    }
}

#[test]
fn rejects_invalid_program_with_line_and_key() {
    let cases = [
        (
            "weight = 0",
            "5: program 'ferret': weight: must be a positive number, not 0",
        ),
        (
            "seconds = -1",
            "5: program 'ferret': seconds: must be a positive number, not -1",
        ),
        (
            "at = -0.5",
            "5: program 'ferret': at: must be from 0 to 32,000,000 seconds, not -0.5",
        ),
        (
            "threads = 0",
            "5: program 'ferret': threads: must be from 1 to 16384, not 0",
        ),
        (
            "copies = 20000",
            "5: program 'ferret': copies: must be from 1 to 10000, not 20000",
        ),
        ("speed = 3", "5: unknown field `speed`"),
        (
            "[[program]]\nparsec = \"feret\"",
            "6: program 'feret': parsec: unknown program 'feret'; programs:",
        ),
        (
            "[[program]]\nparsec = \"ferret\"",
            "5: two programs have the name 'ferret'; give each program its own `name`",
        ),
        (
            "[[program]]\nname = \"x\"",
            "6: program 'x': name: give exactly one of `parsec`",
        ),
    ];
    for (text, want) in cases {
        rejects(&format!("{MACHINE}{PROGRAM}{text}"), want);
    }
    for (traits, want) in [
        (
            "serial = 1.5",
            "5: program 'p': traits: serial must be from 0 to 1, not 1.5",
        ),
        (
            "frame_ms = 0",
            "5: program 'p': traits: frame_ms must be from 0.001",
        ),
    ] {
        let program = format!("[[program]]\nname = \"p\"\ntraits = {{ {traits} }}");
        rejects(&format!("{MACHINE}{program}"), want);
    }
}

#[test]
fn rejects_invalid_script_with_step() {
    for (step, want) in [
        (
            "{ work = { ns = -1 } }",
            "role 0, step 0: work must be from 0",
        ),
        ("{ sleep = { ns = 5 } }", "the program has no work"),
        (
            "{ items = { pool = 3, ns = 1 } }",
            "role 0, step 0: the program has no pool 3",
        ),
        ("{ take = 0 }", "role 0, step 0: the program has no queue 0"),
        ("{ sleep = { ns = -1 } }", "6: invalid value: integer `-1`"),
        (
            "{ wrok = { ns = 5 } }",
            "6: unknown variant `wrok`, expected one of `work`",
        ),
    ] {
        let role = format!("roles = [{{ threads = 1, steps = [{step}] }}]");
        let program = format!("[[program]]\nname = \"p\"\n[program.script]\n{role}");
        rejects(&format!("{MACHINE}{program}"), want);
    }
}

#[test]
fn rejects_invalid_arrivals_with_line_and_key() {
    for (text, want) in [
        (
            "rate_per_s = 0\ncount = 1",
            "6: arrivals.rate_per_s: must be a positive number, not 0",
        ),
        (
            "rate_per_s = 1",
            "6: arrivals.rate_per_s: needs `count` or `seconds`",
        ),
        (
            "rate_per_s = 1\ncount = 0",
            "7: arrivals.count: must be 1 or more",
        ),
        (
            "rate_per_s = 1\nseconds = 1e9",
            "6: arrivals.rate_per_s: 1000000000 programs are expected to arrive; the maximum",
        ),
        (
            "rate_per_s = 1\ncount = 1\nprograms = [\"x\"]",
            "8: arrivals.programs: the file has no program 'x'; its programs are ferret",
        ),
        (
            "rate_per_s = 1\ncount = 1\nprograms = []",
            "8: arrivals.programs: the list of programs is empty",
        ),
    ] {
        rejects(&format!("{MACHINE}{PROGRAM}[arrivals]\n{text}"), want);
    }
}

#[test]
fn rejects_old_keys_as_unknown_and_suggests_similar_ones() {
    for (text, want) in [
        (
            "like = \"opteron-6172\"",
            "3: unknown field `like`, expected one of",
        ),
        (
            "[kernel]\nlike = \"linux-eevdf\"",
            "4: kernel.like: the key is unknown",
        ),
        (
            "[kernel]\nfair = \"threads\"",
            "4: kernel.fair: the key is unknown",
        ),
        (
            "[kernel]\nlead_ns = 1_000_000",
            "4: kernel.lead_ns: the key is unknown",
        ),
        (
            "[kernel]\nslice = 1_000_000",
            "; a similar name exists: `slice_ns`",
        ),
        ("[protocol]\nagainst = []", "4: unknown field `against`"),
        (
            "[protocol]\nround = 2",
            "4: unknown field `round`, expected one of `policies`, `repetitions`, `rounds`",
        ),
        ("[protocol]\nround = 2", "; a similar name exists: `rounds`"),
    ] {
        rejects(&format!("{MACHINE}{text}\n{PROGRAM}"), want);
    }
    let traits = |text: &str| format!("{MACHINE}[[program]]\nname = \"p\"\ntraits = {{ {text} }}");
    rejects(&traits("extra = 2"), "5: unknown field `extra`");
    rejects(&traits("locked = 0.1"), "5: unknown field `locked`");
    rejects(&traits("seral = 0.1"), "; a similar name exists: `serial`");
    let arrivals = "[arrivals]\nrate_per_s = 1\ncount = 1\nstay_s = 1";
    rejects(
        &format!("{MACHINE}{PROGRAM}{arrivals}"),
        "unknown field `stay_s`",
    );
    let script = |keys: &str, step: &str| {
        let role = format!("{keys}roles = [{{ threads = 1, steps = [{step}] }}]");
        format!("{MACHINE}[[program]]\nname = \"p\"\n[program.script]\n{role}")
    };
    let work = "{ work = { ns = 1 } }";
    rejects(&script("settles = true\n", work), "unknown field `settles`");
    rejects(
        &script("", "{ again = { to = 0, times = 2 } }"),
        "unknown variant `again`",
    );
    rejects(
        &script("", "{ contend = { ns = 1, power = 1 } }"),
        "unknown variant `contend`",
    );
}
