// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a file of a mix may say, and what is said of one that is wrong.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use usher_sim::campaign::Scheduler;
use usher_sim::kernel::Fair;
use usher_sim::machine::Costs;
use usher_sim::mixfile::{Body, SimMix};

fn parse(text: &str) -> Result<SimMix, String> {
    SimMix::parse(Path::new("mixes/my.toml"), text).map_err(|error| error.to_string())
}

const MACHINE: &str = "[machine]\nfrom = \"core:2 pu:1\"\n";
const PROGRAM: &str = "[[program]]\nparsec = \"ferret\"\n";

#[test]
fn little_is_enough_and_everything_can_be_said() {
    let little = parse(&format!("{MACHINE}{PROGRAM}")).unwrap();
    assert_eq!(little.title, "my");
    assert_eq!(little.costs, Costs::default());
    assert_eq!(little.protocol.against.len(), 4);
    let program = &little.programs[0];
    assert!(program.known && program.repeats && program.resident);
    assert_eq!((program.name.as_str(), program.copies), ("ferret", 1));

    let all = parse(
        r#"
        title = "all"
        description = "everything"
        [machine]
        from = "package:2 core:2 pu:1"
        like = "xeon-phi-7210"
        costs = { node_gbps = 20, switch_ns = 100 }
        [kernel]
        fair = "threads"
        slice_ns = 1000000
        [protocol]
        against = ["linux", "casas-lending", "usher-cold", "oracle"]
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
        stay_s = 3
        "#,
    )
    .unwrap();
    assert_eq!(all.costs.node_gbps, 20.0);
    assert_eq!(all.costs.switch_ns, 100.0);
    assert_eq!(all.costs.refill_gbps, Costs::phi().refill_gbps);
    assert_eq!(all.kernel.fair, Fair::Threads);
    assert_eq!(all.protocol.against[1], Scheduler::CasasLending);
    assert!(
        matches!(&all.programs[0].body, Body::Traits { traits, seconds, .. }
        if traits.serial == 0.2 && *seconds == 1.5)
    );
    assert!(matches!(&all.programs[1].body, Body::Script(script) if script.threads() == 2));
    assert!(all.programs[0].resident && !all.programs[1].resident);
    assert_eq!(all.arrivals.unwrap().programs, [1]);
}

/// A file is refused in one line that says this.
fn refuses(text: &str, want: &str) {
    let said = parse(text).unwrap_err();
    let in_one_line = said.starts_with("mixes/my.toml:") && !said.contains('\n');
    assert!(in_one_line && said.contains(want), "{want}\n{said}\n{text}");
}

#[test]
fn a_machine_or_protocol_that_is_wrong_is_refused_with_its_line_and_key() {
    refuses("", "1: missing field `machine`");
    refuses(MACHINE, "1: a mix needs at least one [[program]]");
    let cases = [
        (
            "like = \"vax\"",
            "3: machine.like: no machine 'vax'; there are opteron-6172, xeon",
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
            "4: kernel.slice: unknown; there are like, ",
        ),
        (
            "[kernel]\nfair = \"threads\"\nbalance_ns = 0",
            "5: kernel.balance_ns: must be from",
        ),
        (
            "[kernel]\nslice_ns = 1_000_000\nturn_ns = 24_000_000",
            "5: kernel.turn_ns: means nothing in the order \"eevdf\"",
        ),
        (
            "[kernel]\nlike = \"usher-sched\"\nfair = \"programs\"",
            "5: kernel.fair: means nothing in the order \"usher-sched\"",
        ),
        (
            "[protocol]\nagainst = [\"linus\"]",
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
        refuses(&format!("{MACHINE}{text}\n{PROGRAM}"), want);
    }
}

#[test]
fn a_program_that_is_wrong_is_refused_with_its_line_and_key() {
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
            "5: program 'ferret': at: must be 0 or more seconds, not -0.5",
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
            "6: program 'feret': parsec: no program 'feret'; there are",
        ),
        (
            "[[program]]\nparsec = \"ferret\"",
            "5: two programs are called 'ferret'; use `name`",
        ),
        (
            "[[program]]\nname = \"x\"",
            "6: program 'x': name: say what it does by one of `parsec`",
        ),
    ];
    for (text, want) in cases {
        refuses(&format!("{MACHINE}{PROGRAM}{text}"), want);
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
        refuses(&format!("{MACHINE}{program}"), want);
    }
}

#[test]
fn a_script_that_is_wrong_is_refused_with_its_step() {
    for (step, want) in [
        (
            "{ work = { ns = -1 } }",
            "role 0, step 0: work must be from 0",
        ),
        ("{ sleep = { ns = 5 } }", "it has no work"),
        (
            "{ items = { pool = 3, ns = 1 } }",
            "role 0, step 0: there is no pool 3",
        ),
        ("{ take = 0 }", "role 0, step 0: there is no queue 0"),
        ("{ sleep = { ns = -1 } }", "6: invalid value: integer `-1`"),
        (
            "{ wrok = { ns = 5 } }",
            "6: unknown variant `wrok`, expected one of `work`",
        ),
    ] {
        let role = format!("roles = [{{ threads = 1, steps = [{step}] }}]");
        let program = format!("[[program]]\nname = \"p\"\n[program.script]\n{role}");
        refuses(&format!("{MACHINE}{program}"), want);
    }
}

#[test]
fn arrivals_that_are_wrong_are_refused_with_their_line_and_key() {
    for (text, want) in [
        (
            "rate_per_s = 0\ncount = 1",
            "6: arrivals.rate_per_s: must be a positive number, not 0",
        ),
        (
            "rate_per_s = 1",
            "6: arrivals.rate_per_s: say `count` or `seconds`, too",
        ),
        (
            "rate_per_s = 1\ncount = 0",
            "7: arrivals.count: must be 1 or more",
        ),
        (
            "rate_per_s = 1\nseconds = 1e9",
            "6: arrivals.rate_per_s: 1000000000 programs, the most",
        ),
        (
            "rate_per_s = 1\ncount = 1\nprograms = [\"x\"]",
            "8: arrivals.programs: no program 'x'; there are ferret",
        ),
        (
            "rate_per_s = 1\ncount = 1\nprograms = []",
            "8: arrivals.programs: names no program",
        ),
    ] {
        refuses(&format!("{MACHINE}{PROGRAM}[arrivals]\n{text}"), want);
    }
}
