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

#[test]
fn a_file_that_is_wrong_is_refused_with_its_line_and_key() {
    let with = |machine: &str, rest: &str| format!("{MACHINE}{machine}\n{PROGRAM}{rest}");
    let traits =
        |traits: &str| format!("{MACHINE}[[program]]\nname = \"p\"\ntraits = {{ {traits} }}");
    let script = |role: &str| {
        let role = format!("roles = [{{ threads = 1, steps = [{role}] }}]");
        format!("{MACHINE}[[program]]\nname = \"p\"\n[program.script]\n{role}")
    };
    let cases = [
        ("".to_owned(), "1: missing field `machine`"),
        (
            MACHINE.to_owned(),
            "1: a mix needs at least one [[program]]",
        ),
        (
            with("like = \"vax\"", ""),
            "3: machine.like: no machine 'vax'; there are opteron-6172, xeon-e5-2695v2, xeon-phi-7210",
        ),
        (
            with("costs = { node_gpbs = 1 }", ""),
            "3: machine.costs: unknown field `node_gpbs`, expected one of",
        ),
        (
            with("costs = { node_gbps = 0 }", ""),
            "3: machine.costs: node_gbps: must be positive, not 0",
        ),
        (
            with("costs = { switch_ns = -1 }", ""),
            "3: machine.costs: switch_ns: must be 0 or more, not -1",
        ),
        (with("[kernel]\nslice = 1", ""), "4: unknown field `slice`"),
        (
            with("[kernel]\nfair = \"threads\"\nbalance_ns = 0", ""),
            "5: kernel.balance_ns: must be from 10000 to",
        ),
        (
            with("[protocol]\nagainst = [\"linus\"]", ""),
            "4: unknown variant `linus`, expected one of `linux`",
        ),
        (
            with("[protocol]\nseed = 1\nrounds = 0", ""),
            "5: protocol.rounds: must be 1 or more",
        ),
        (
            with("[protocol]\nmax_seconds = nan", ""),
            "4: protocol.max_seconds: must be a positive number",
        ),
        (
            with("", "weight = 0"),
            "6: program 'ferret': weight: must be a positive number, not 0",
        ),
        (
            with("", "seconds = -1"),
            "6: program 'ferret': seconds: must be a positive number, not -1",
        ),
        (
            with("", "at = -0.5"),
            "6: program 'ferret': at: must be 0 or more seconds, not -0.5",
        ),
        (
            with("", "threads = 0"),
            "6: program 'ferret': threads: must be from 1 to 16384, not 0",
        ),
        (
            with("", "copies = 20000"),
            "6: program 'ferret': copies: must be from 1 to 10000, not 20000",
        ),
        (with("", "speed = 3"), "6: unknown field `speed`"),
        (
            with("", "[[program]]\nparsec = \"feret\""),
            "7: program 'feret': parsec: no program 'feret'; there are blackscholes, bodytrack",
        ),
        (
            with("", PROGRAM),
            "6: two programs are called 'ferret'; use `name`, or `copies`",
        ),
        (
            with("", "[[program]]\nname = \"x\""),
            "7: program 'x': name: say what it does by one of `parsec`, `traits`, `script`",
        ),
        (
            traits("serial = 1.5"),
            "5: program 'p': traits: serial must be from 0 to 1, not 1.5",
        ),
        (
            traits("frame_ms = 0"),
            "5: program 'p': traits: frame_ms must be from 0.001",
        ),
        (
            script("{ work = { ns = -1 } }"),
            "program 'p': script: role 0, step 0: work must be from 0",
        ),
        (
            script("{ sleep = { ns = -1 } }"),
            "6: invalid value: integer `-1`",
        ),
        (
            script("{ sleep = { ns = 5 } }"),
            "program 'p': script: it has no work",
        ),
        (
            script("{ items = { pool = 3, ns = 1 } }"),
            "program 'p': script: role 0, step 0: there is no pool 3",
        ),
        (
            script("{ take = 0 }"),
            "program 'p': script: role 0, step 0: there is no queue 0",
        ),
        (
            script("{ wrok = { ns = 5 } }"),
            "6: unknown variant `wrok`, expected one of `work`",
        ),
        (
            with("", "[arrivals]\nrate_per_s = 0\ncount = 1"),
            "7: arrivals.rate_per_s: must be a positive number, not 0",
        ),
        (
            with("", "[arrivals]\nrate_per_s = 1"),
            "7: arrivals.rate_per_s: say `count` or `seconds`, too",
        ),
        (
            with("", "[arrivals]\nrate_per_s = 1\nseconds = 1e9"),
            "7: arrivals.rate_per_s: 1000000000 programs, the most is 10000",
        ),
        (
            with(
                "",
                "[arrivals]\nrate_per_s = 1\ncount = 1\nprograms = [\"x\"]",
            ),
            "9: arrivals.programs: no program 'x'; there are ferret",
        ),
    ];
    for (text, want) in cases {
        let said = parse(&text).unwrap_err();
        assert!(
            said.starts_with("mixes/my.toml:") && !said.contains('\n'),
            "{said}"
        );
        assert!(said.contains(want), "{want}\n{said}\n{text}");
    }
}
