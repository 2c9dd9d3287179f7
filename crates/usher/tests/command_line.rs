// SPDX-License-Identifier: GPL-2.0-only
//! Runs `usher` commands without a daemon and checks messages, exit statuses, signals, output
//! files, manual pages and completions.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use common::{World, refused, stderr, stdout, wait_for};

/// The number of CPUs that other programs may use during a measurement: more than the machine has,
/// because other tests run at the same time.
const BUSY: &str = "100000";

#[test]
fn help_contains_examples() {
    let world = World::new();
    let commands = [
        "run",
        "profile",
        "mix",
        "attach",
        "detach",
        "wait",
        "status",
        "top",
        "explain",
        "topo",
        "doctor",
        "plan",
        "daemon",
        "replay",
        "completions",
        "schema",
        "man",
    ];
    for command in commands {
        let output = world.run(&[command, "--help"]);
        let text = stdout(&output);
        assert!(output.status.success(), "{command}");
        assert!(text.contains("Examples:"), "{command}:\n{text}");
        assert_eq!(text, stdout(&world.run(&["help", command])));
        let wide = text.lines().find(|line| line.chars().count() > 100);
        assert_eq!(wide, None, "{command}");
    }
    insta::assert_snapshot!(stdout(&world.run(&["--help"])));
}

#[test]
fn reports_typing_errors_in_one_line_with_a_tip_and_status_125() {
    for (args, line) in [
        (
            &["statsu"][..],
            "usher: unrecognized subcommand 'statsu'; a similar subcommand exists: 'status'; see 'usher --help'",
        ),
        (
            &["../x"],
            "usher: unrecognized subcommand '../x'; see 'usher --help'",
        ),
        (
            &["topo", "--form", "x"],
            "usher: unexpected argument '--form' found; a similar argument exists: '--from'; see 'usher topo --help'",
        ),
        (
            &["run"],
            "usher: the following required arguments were not provided: <CMD>...; see 'usher run --help'",
        ),
        (
            &["run", "--weight", "-1", "true"],
            "usher: invalid value '-1' for '--weight <WEIGHT>': the weight of a program must be a number from 0.001 to 1000; see 'usher run --help'",
        ),
        (
            &["run", "--weight", "NaN", "true"],
            "usher: invalid value 'NaN' for '--weight <WEIGHT>': the weight of a program must be a number from 0.001 to 1000; see 'usher run --help'",
        ),
        (
            &["mix", "--max-seconds", "nan", "x.toml"],
            "usher: invalid value 'nan' for '--max-seconds <SECONDS>': the number of seconds must be positive; see 'usher mix --help'",
        ),
        (
            &["mix", "--max-seconds", "-1", "x.toml"],
            "usher: invalid value '-1' for '--max-seconds <SECONDS>': the number of seconds must be positive; see 'usher mix --help'",
        ),
        (
            &["profile", "--max-seconds", "0", "true"],
            "usher: invalid value '0' for '--max-seconds <SECONDS>': the number of seconds must be positive; see 'usher profile --help'",
        ),
        (
            &["profile", "--svg", "/nowhere/x.svg", "true"],
            "usher: writing the picture '/nowhere/x.svg': No such file or directory",
        ),
        (
            &["profile", "--svg", "/tmp", "true"],
            "usher: writing the picture '/tmp': is a directory",
        ),
        (
            &["daemon", "--policy", "ushr"],
            "usher: invalid value 'ushr' for '--policy <POLICY>' [possible values: linux, equal, casas, usher]; a similar value exists: 'usher'; see 'usher daemon --help'",
        ),
        (
            &["daemon", "--metrics", "0.0.0.0:1"],
            "usher: invalid value '0.0.0.0:1' for '--metrics <WHERE>': 0.0.0.0 is not a loopback address: metrics are served only to this machine; see 'usher daemon --help'",
        ),
        (
            &["replay", "/nowhere"],
            "usher: opening the record '/nowhere': No such file or directory",
        ),
        (
            &["plan", "--programs", "/nowhere"],
            "usher: reading the programs from '/nowhere': No such file or directory",
        ),
    ] {
        assert_eq!(refused(args), (125, line.to_owned()));
    }
}

#[test]
fn without_a_daemon_the_error_names_the_searched_sockets() {
    for args in [&["status"][..], &["detach", "x"], &["explain"]] {
        let (status, line) = refused(args);
        assert_eq!(status, 125);
        assert!(
            line.contains("/run/usher.varlink; 'usher run -- CMD' starts one"),
            "{line}"
        );
    }
}

#[test]
fn exit_statuses_are_passed_on() {
    let world = World::new();
    let status = |script: &str| world.run(&["run", "--", "sh", "-c", script]).status.code();
    for code in [0, 1, 7, 125, 255] {
        assert_eq!(status(&format!("exit {code}")), Some(code));
    }
    for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11)] {
        assert_eq!(status(&format!("kill -{name} $$")), Some(128 + number));
    }
}

#[test]
fn commands_that_cannot_run_end_with_127_and_126() {
    assert_eq!(
        refused(&["run", "no-such-command"]),
        (
            127,
            "usher: running 'no-such-command': No such file or directory".to_owned()
        )
    );
    assert_eq!(refused(&["run", "--hints", "no-such-command"]).0, 127);
    for command in ["run", "profile"] {
        assert_eq!(
            refused(&[command, "--", ""]),
            (127, "usher: running '': command not found".to_owned())
        );
    }
    assert_eq!(
        refused(&["run", "/etc/passwd"]),
        (
            126,
            "usher: running '/etc/passwd': Permission denied".to_owned()
        )
    );
    let world = World::new();
    let script = world.path("broken");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let output = world.run(&["run", script.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(127), "{}", stderr(&output));
}

#[test]
fn streams_arguments_and_environment_pass_through() {
    let world = World::new();
    let mut cat = world.usher(&[
        "run",
        "--",
        "sh",
        "-c",
        "cat; echo \"$0 $1 $X\" >&2",
        "a b",
        "-c",
    ]);
    let mut cat = cat
        .env("X", "y")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut cat.stdin.take().unwrap(), b"through").unwrap();
    let output = cat.wait_with_output().unwrap();
    assert_eq!(
        (stdout(&output).as_str(), stderr(&output).as_str()),
        ("through", "a b -c y\n")
    );
}

#[test]
fn hints_contain_the_number_of_cpus_and_keep_set_variables() {
    let world = World::new();
    let cpus = std::thread::available_parallelism().unwrap();
    let mut command = world.usher(&[
        "run",
        "--hints",
        "--",
        "sh",
        "-c",
        "echo $OMP_NUM_THREADS $GOMAXPROCS",
    ]);
    let output = command
        .env("GOMAXPROCS", "77")
        .env_remove("OMP_NUM_THREADS")
        .output()
        .unwrap();
    assert_eq!(stdout(&output), format!("{cpus} 77\n"));
}

#[test]
fn forwards_signals_and_keeps_ignored_ones_ignored() {
    let world = World::new();
    let script = "trap 'echo got it; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let mut run = world.usher(&["run", "--", "sh", "-c", script]);
    let mut run = run.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(run.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    common::signal(run.id() as i32, libc::SIGTERM);
    assert_eq!(lines.next().unwrap().unwrap(), "got it");
    assert_eq!(run.wait().unwrap().code(), Some(3));

    let mut nohup = world.usher(&["run", "--", "sh", "-c", "kill -HUP $$; echo alive"]);
    // SAFETY: signal(2) is async-signal-safe.
    unsafe {
        nohup.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        })
    };
    assert_eq!(stdout(&nohup.output().unwrap()), "alive\n");
}

#[test]
fn a_signal_ends_a_measurement_unless_it_is_ignored() {
    let world = World::new();
    let up = world.path("up");
    let script = format!("echo > {}; sleep 60", up.display());
    let profile = |ignored: &'static [i32]| {
        let _ = fs::remove_file(&up);
        let args = [
            "profile",
            "--max-other-cpus",
            BUSY,
            "--cores",
            "1",
            "--repeats",
            "1",
            "--",
            "sh",
            "-c",
            &script,
        ];
        let mut command = world.usher(&args);
        // SAFETY: signal(2) is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                // Ignored signals are inherited, so the process that started the test may have made
                // the test ignore some.
                for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
                    let ignores = ignored.contains(&signal);
                    libc::signal(
                        signal,
                        if ignores {
                            libc::SIG_IGN
                        } else {
                            libc::SIG_DFL
                        },
                    );
                }
                Ok(())
            })
        };
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        wait_for("the program to run", || up.exists().then_some(()));
        child
    };
    let end = |child: std::process::Child, signal: i32| {
        common::signal(child.id() as i32, signal);
        let output = child.wait_with_output().unwrap();
        (output.status.code(), stderr(&output))
    };
    for (signal, name) in [
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
    ] {
        let ended = (Some(128 + signal), format!("usher: ended by {name}\n"));
        assert_eq!(end(profile(&[]), signal), ended);
    }
    let deaf = profile(&[libc::SIGHUP, libc::SIGINT]);
    common::signal(deaf.id() as i32, libc::SIGHUP);
    common::signal(deaf.id() as i32, libc::SIGINT);
    assert_eq!(end(deaf, libc::SIGTERM).0, Some(143));
}

#[test]
fn a_program_outlives_its_launcher() {
    let world = World::new();
    let mark = world.path("mark");
    let go = world.path("go");
    let script = format!(
        "echo up > {mark}; until [ -e {} ]; do sleep 0.02; done; echo done > {mark}",
        go.display(),
        mark = mark.display()
    );
    let mut run = world
        .usher(&["run", "--", "sh", "-c", &script])
        .spawn()
        .unwrap();
    let expect_output = |what: &'static str| {
        wait_for(what, || {
            fs::read_to_string(&mark).ok().filter(|text| text == what)
        })
    };
    expect_output("up\n");
    run.kill().unwrap();
    run.wait().unwrap();
    fs::write(go, "").unwrap();
    expect_output("done\n");
}

#[test]
fn plan_prints_the_documented_output() {
    let world = World::new();
    let programs = world.path("programs.json");
    let curves = r#"{"programs":[
        {"name":"good","curve":{"1":1,"48":48}},
        {"name":"poor","curve":{"1":1,"6":2,"48":2}},
        {"name":"falls","curve":{"1":1,"12":6,"48":3}}]}"#;
    fs::write(&programs, curves).unwrap();
    let args = [
        "plan",
        "--topology",
        "package:4 die:2 core:6 pu:1",
        "--programs",
        programs.to_str().unwrap(),
    ];
    let output = world.run(&args);
    insta::assert_snapshot!(stdout(&output));
    let table = world.run(&[&args[..], &["--table"]].concat());
    insta::assert_snapshot!(stdout(&table));
    assert_eq!(output.stdout, world.run(&args).stdout);
}

#[test]
fn names_invalid_input() {
    let world = World::new();
    let plan = |curves: &str, topology: &str| {
        let file = world.path("in.json");
        fs::write(&file, curves).unwrap();
        let output = world.run(&[
            "plan",
            "--topology",
            topology,
            "--programs",
            file.to_str().unwrap(),
        ]);
        assert_eq!(output.status.code(), Some(125), "{curves}");
        assert!(output.stdout.is_empty());
        stderr(&output).replace(file.to_str().unwrap(), "FILE")
    };
    let machine = "core:2 pu:1";
    let curve = |points: &str| {
        plan(
            &format!(r#"{{"programs":[{{"name":"p","curve":{points}}}]}}"#),
            machine,
        )
    };
    let all = [
        curve("{}"),
        curve(r#"{"1":1}"#),
        curve(r#"{"1":0,"2":1}"#),
        curve(r#"{"1":-3,"2":1}"#),
        curve(r#"{"1":NaN,"2":1}"#),
        curve(r#"{"0":1,"2":1}"#),
        curve(r#"{"one":1,"2":1}"#),
        plan(r#"{"programs":[{"name":"p"}]}"#, machine),
        plan("", machine),
        plan("[", machine),
        plan(r#"{"programs":[]}"#, "package:2 kern:4"),
        plan(r#"{"programs":[]}"#, "package:0"),
        plan(r#"{"programs":[]}"#, "/no/such/machine.xml"),
        plan(r#"{"programs":[]}"#, ""),
    ];
    for line in &all {
        assert_eq!(line.lines().count(), 1, "{line}");
    }
    insta::assert_snapshot!(all.concat());
}

#[test]
fn draws_in_colour_only_if_enabled() {
    let world = World::new();
    let colour = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = world.usher(args);
        command.envs(variables.iter().copied());
        command.output().unwrap().stdout.contains(&0x1b)
    };
    let topo = ["topo", "--from", "core:2 pu:1"];
    assert!(!colour(&topo, &[]));
    assert!(colour(
        &[&topo[..], &["--color", "always"]].concat(),
        &[("NO_COLOR", "1")]
    ));
    assert!(colour(&topo, &[("CLICOLOR_FORCE", "1")]));
    assert!(!colour(
        &[&topo[..], &["--color=never"]].concat(),
        &[("CLICOLOR_FORCE", "1")]
    ));
    assert!(!colour(&["--help"], &[]));
    assert!(colour(&["--color", "always", "run", "--help"], &[]));
}

#[test]
fn a_closed_reader_is_no_failure() {
    let world = World::new();
    let mut topo = world.usher(&["completions", "zsh"]);
    let mut topo = topo
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(topo.stdout.take());
    let output = topo.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output)),
        (Some(0), String::new())
    );
}

#[test]
fn manual_pages_and_completions_contain_every_command() {
    let world = World::new();
    let man = world.path("man");
    let output = world.run(&["man", man.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let run = fs::read_to_string(man.join("usher-run.1")).unwrap();
    assert!(
        run.contains(".TH USHER-RUN 1 ") && run.contains(".SH EXAMPLES\n.nf\n"),
        "{run}"
    );
    assert!(man.join("usher.1").exists() && !man.join("usher-keeper.1").exists());
    let sched = fs::read_to_string(man.join("usher-sched.1")).unwrap();
    for below in ["start", "stop", "status", "set", "stats", "explain"] {
        let name = format!("usher-sched-{below}");
        assert!(
            sched.contains(&name.replace('-', "\\-")),
            "{below}: {sched}"
        );
        let page = fs::read_to_string(man.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".SH EXAMPLES\n.nf\nusher sched"), "{page}");
        assert!(page.contains("DIR") && page.contains("\"usher "), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&world.run(&["completions", shell]));
        assert!(
            script.contains("attach") && script.contains("runtime-dir"),
            "{shell}"
        );
    }
}

#[test]
fn doctor_always_answers() {
    let world = World::new();
    let text = stdout(&world.run(&["doctor"]));
    assert!(
        text.contains("pmu") && text.contains("stale journals"),
        "{text}"
    );
    fs::write(world.path("profiles.db"), "no database").unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains("'usher sched start'"), "{text}");
    let answer = world.json(&["doctor"]).unwrap();
    assert!(answer["scheduler"]["running"] == false, "{answer}");
    assert!(answer["store"]["problem"].is_string(), "{answer}");
    assert!(answer["kernel"]["items"].as_array().unwrap().len() > 5);
    let expect = answer["conclusion"]["expect"].as_str().unwrap();
    assert!(expect.contains("expect"), "{answer}");
    assert!(words.join(" ").contains(&format!("conclusion {expect}")));
}

#[test]
fn empty_variables_count_as_unset() {
    let world = World::new();
    let plain = |variable: &str, value: Option<&str>| {
        let mut command = world.usher(&["doctor", "--json"]);
        command
            .env("XDG_DATA_HOME", world.path("data"))
            .env("HOME", world.path("home"));
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (
            answer["store"]["path"].clone(),
            answer["daemon"]["pid"].clone(),
        )
    };
    for variable in ["USHER_STORE", "USHER_RUNTIME_DIR"] {
        assert_eq!(plain(variable, Some("")), plain(variable, None));
    }
    assert_eq!(refused(&["doctor", "--store", ""]).0, 125);
}

#[test]
fn doctor_names_a_path_where_no_store_can_be_created() {
    let world = World::new();
    fs::write(world.path("file"), "").unwrap();
    let store = world.path("file/usher/profiles.db");
    let output = world.run(&["doctor", "--store", store.to_str().unwrap()]);
    let text = stdout(&output)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let cause = format!(
        "cannot be created: {}: it is not a directory",
        world.path("file").display()
    );
    assert!(text.contains(&cause), "{text}");
    assert!(stdout(&world.run(&["doctor"])).contains("does not exist yet"));
}

#[test]
fn rejects_a_damaged_topology_with_a_reason() {
    let world = World::new();
    let file = world.path("cut.xml");
    fs::write(
        &file,
        "<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n<object type=\"Mach",
    )
    .unwrap();
    let (status, line) = refused(&["topo", "--from", file.to_str().unwrap()]);
    assert_eq!(status, 125);
    assert!(!line.contains("Errno") && !line.contains("Some("), "{line}");
}

#[test]
fn long_lists_of_domains_are_ranges() {
    let world = World::new();
    let programs = world.path("one.json");
    let curve = r#"{"programs":[{"name":"p","curve":{"1":1,"128":128}}]}"#;
    fs::write(&programs, curve).unwrap();
    let machine = "package:64 core:2 pu:1";
    let file = programs.to_str().unwrap();
    let output = world.run(&["plan", "--topology", machine, "--programs", file, "--table"]);
    assert!(stdout(&output).contains(" 0-63 "), "{}", stdout(&output));
}

#[test]
fn rejects_a_record_that_does_not_replay() {
    let world = World::new();
    let replay = |text: &str| {
        let record = world.path("record");
        fs::write(&record, text).unwrap();
        let output = world.run(&["replay", record.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(125));
        stderr(&output)
    };
    assert!(replay("").contains("the record is empty"));
    assert!(replay("{}\n").contains("line 1 of the record is not a valid record head"));
}

#[test]
fn a_mix_is_run_and_reported() {
    let world = World::new();
    let file = world.path("two.toml");
    let text = r#"title = "two"
        [protocol]
        repeats = 1
        [[program]]
        name = "count"
        run = ["sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"]
        [[program]]
        name = "sleep"
        run = ["sleep", "0.01"]"#;
    fs::write(&file, text).unwrap();
    let out = world.path("report");
    let args = [
        "mix",
        file.to_str().unwrap(),
        "--against",
        "linux,equal",
        "--max-other-cpus",
        BUSY,
        "--out",
        out.to_str().unwrap(),
    ];
    let output = world.run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("ANTT"), "{}", stdout(&output));
    assert!(
        stderr(&output).contains("equal: ANTT"),
        "{}",
        stderr(&output)
    );
    let short = "too short to compare";
    assert!(stdout(&output).contains(short), "{}", stdout(&output));
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("src=\"http"));
    assert!(page.contains(short));
    for name in ["result.json", "trace.json"] {
        let text = fs::read_to_string(out.join(name)).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }
}

#[test]
fn mix_prints_a_result_that_it_cannot_write() {
    let world = World::new();
    let file = world.path("one.toml");
    let text = "[protocol]\nrepeats = 1\n[[program]]\nname = \"p\"\nrun = [\"true\"]\n";
    fs::write(&file, text).unwrap();
    let out = world.path("report");
    fs::create_dir(&out).unwrap();
    std::os::unix::fs::symlink("/dev/full", out.join("result.json")).unwrap();
    let output = world.run(&[
        "mix",
        file.to_str().unwrap(),
        "--against",
        "linux",
        "--max-other-cpus",
        BUSY,
        "--out",
        out.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(125));
    let message = stderr(&output);
    assert!(
        message.contains("result.json': No space left on device"),
        "{message}"
    );
    let shown = stdout(&output);
    assert!(
        shown.contains("ANTT") && shown.contains("trace.json"),
        "{shown}"
    );
    assert!(!shown.contains("result.json"), "{shown}");
}

#[test]
fn a_mix_that_cannot_run_leaves_nothing() {
    let world = World::new();
    let file = world.path("bad.toml");
    let out = world.path("report");
    let mix = |text: &str| {
        fs::write(&file, text).unwrap();
        let args = [
            "mix",
            file.to_str().unwrap(),
            "--max-other-cpus",
            BUSY,
            "--out",
            out.to_str().unwrap(),
        ];
        let output = world.run(&args);
        assert!(!out.exists());
        let line = stderr(&output).replace(file.to_str().unwrap(), "FILE");
        (output.status.code().unwrap(), line)
    };
    let missing = mix("title = \"x\"\n[[program]]\nname = \"p\"\nrun = [\"no-such-program\"]\n");
    assert_eq!(
        missing,
        (
            127,
            "usher: the program 'p' cannot be started: running 'no-such-program': No such file or directory\n".to_owned()
        )
    );
    let denied = mix("title = \"x\"\n[[program]]\nname = \"p\"\nrun = [\"/etc/passwd\"]\n");
    assert_eq!(denied.0, 126, "{}", denied.1);
    let wrong = mix("title = \"x\"\n[[program]]\nname = \"p\"\nrum = [\"true\"]\n");
    assert_eq!(wrong.0, 125);
    assert!(
        wrong.1.starts_with("usher: FILE:4: program 'p': "),
        "{}",
        wrong.1
    );
    let failing = mix("title = \"x\"\n[[program]]\nname = \"p\"\nrun = [\"false\"]\n");
    assert_eq!(failing.0, 125, "{}", failing.1);
    let alone = "usher: program 'p' ended with exit status 1 when run alone\n";
    assert!(failing.1.ends_with(alone), "{}", failing.1);
    let program = "[[program]]\nname = \"p\"\nrun = [\"true\"]\n";
    let output = mix(&format!("{program}output = \"/nowhere/file\"\n"));
    let message = "usher: the program 'p' cannot be started: opening /nowhere/file for the program's standard output: No such file or directory\n";
    assert_eq!(output, (125, message.to_owned()));
    assert_eq!(mix(&format!("{program}output = \".\"\n")).0, 125);
}

#[test]
fn profile_measures_draws_and_stores_a_curve() {
    let world = World::new();
    let picture = world.path("curve.svg");
    let script = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); done; sleep 0.2";
    let args = [
        "profile",
        "--max-other-cpus",
        BUSY,
        "--repeats",
        "1",
        "--cores",
        "1",
        "--name",
        "counter",
        "--svg",
        picture.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        script,
    ];
    let output = world.run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("progress/s"),
        "{}",
        stdout(&output)
    );
    assert!(fs::read_to_string(&picture).unwrap().starts_with("<svg"));
    assert_eq!(world.json(&["doctor"]).unwrap()["store"]["profiles"], 1);
    assert_eq!(
        refused(&["profile", "--cores", "0", "--", "true"]).1,
        format!(
            "usher: the number of cores must be from 1 to {}, not 0",
            std::thread::available_parallelism().unwrap()
        )
    );
    assert_eq!(
        world
            .run(&["profile", "--force", "--", "false"])
            .status
            .code(),
        Some(125)
    );
    assert_eq!(
        world
            .run(&["profile", "--force", "--", "no-such-program"])
            .status
            .code(),
        Some(127)
    );
}

#[test]
fn profile_prints_a_curve_that_it_cannot_write() {
    let world = World::new();
    fs::create_dir(world.path("profiles.db")).unwrap();
    let args = [
        "profile",
        "--max-other-cpus",
        BUSY,
        "--repeats",
        "1",
        "--cores",
        "1",
        "--svg",
        "/dev/full",
        "--",
        "sleep",
        "0.2",
    ];
    let output = world.run(&args);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        stdout(&output).contains("progress/s"),
        "{}",
        stdout(&output)
    );
    let message = stderr(&output);
    assert!(message.contains("profiles.db"), "{message}");
    let picture = "usher: writing the picture '/dev/full': No space left on device\n";
    assert!(message.ends_with(picture), "{message}");
    let answer = world.usher(&args).arg("--json").output().unwrap();
    assert_eq!(answer.status.code(), Some(125));
}
