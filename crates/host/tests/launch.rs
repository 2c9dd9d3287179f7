// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches real programs and checks exit statuses, errors, the wait before `exec`, streams,
//! sessions, signals and repeaters.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use usher_host::launch::{Exit, Forwarder, LaunchSpec, Stream, hold, repeat};

fn sh(script: &str) -> LaunchSpec {
    LaunchSpec::new(["sh", "-c", script])
}

/// Returns a shell without variables for numbers of threads.
fn sh_without_threads(script: &str) -> LaunchSpec {
    let mut spec = sh(script);
    let names = sh("").thread_hints().thread_variables;
    let more = ["GOTO_NUM_THREADS", "RAYON_RS_NUM_CPUS", "RAYON_NUM_THREADS"];
    let names = names.into_iter().chain(more);
    spec.env.extend(names.map(|name| (name.into(), None)));
    spec
}

fn run(spec: &LaunchSpec) -> Exit {
    hold(spec).unwrap().release().unwrap().wait().unwrap()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::yield_now();
    }
}

/// Returns the state letter of a process in `/proc`; `None` if the process is gone or a zombie.
fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    (state != 'Z').then_some(state)
}

fn output(spec: LaunchSpec) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let exit = run(&LaunchSpec {
        stdout: Stream::File(path.clone()),
        ..spec
    });
    assert!(exit.success(), "{exit}");
    fs::read_to_string(path).unwrap()
}

#[test]
fn passes_the_exit_status_on_as_a_shell_does() {
    assert_eq!(run(&sh("exit 7")).code(), 7);
    assert_eq!(run(&sh("kill -TERM $$")).code(), 128 + 15);
    assert!(run(&LaunchSpec::new(["true"])).success());
}

#[test]
fn launch_errors_name_program_cause_and_status() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    fs::write(&plain, "text").unwrap();
    for (argv, code, text) in [
        (
            vec![PathBuf::from("no-such-program-anywhere")],
            127,
            "running 'no-such-program-anywhere': No such file or directory",
        ),
        (vec![plain.clone()], 126, "Permission denied"),
        (vec![dir.path().to_owned()], 126, "Permission denied"),
        (
            vec![],
            125,
            "no program can be launched, because no command was given",
        ),
    ] {
        let error = hold(&LaunchSpec::new(argv)).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&plain, "#!/no/such/interpreter\n").unwrap();
    let error = hold(&LaunchSpec::new([&plain]))
        .and_then(|held| held.release().map(|_| ()))
        .unwrap_err();
    assert_eq!(error.code(), 127, "{error}");
}

#[test]
fn an_error_in_the_child_is_reported() {
    let spec = LaunchSpec {
        cwd: Some("/no/such/folder".into()),
        ..LaunchSpec::new(["/bin/true"])
    };
    let error = hold(&spec)
        .and_then(|held| held.release().map(|_| ()))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "running '/bin/true' failed while changing to the program's working directory: No such file or directory (os error 2)"
    );
    assert_eq!(error.code(), 125);
}

#[test]
fn a_script_without_an_interpreter_line_is_run_by_the_shell() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    fs::write(&script, "exit $1\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let spec = LaunchSpec::new([script.as_os_str(), "9".as_ref()]);
    assert_eq!(run(&spec).code(), 9);
}

#[test]
fn nothing_is_executed_before_the_release() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let spec = sh(&format!("echo ran > {}", mark.display()));
    let held = hold(&spec).unwrap();
    let pid = held.pid();
    // The child still executes this test program, not the shell.
    let own = fs::read_link("/proc/self/exe").unwrap();
    assert_eq!(fs::read_link(format!("/proc/{pid}/exe")).unwrap(), own);
    assert!(!mark.exists());
    drop(held);
    assert_eq!(state(pid), None);
    assert!(!mark.exists());
    assert!(run(&spec).success());
    assert!(mark.exists());
}

#[test]
fn a_mask_set_while_held_applies_to_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let held = hold(&LaunchSpec {
        stdout: Stream::File(path.clone()),
        ..LaunchSpec::new(["grep", "Cpus_allowed_list", "/proc/self/status"])
    })
    .unwrap();
    let pid = rustix::process::Pid::from_raw(held.pid());
    let mut mask = rustix::thread::CpuSet::new();
    mask.set(0);
    rustix::thread::sched_setaffinity(pid, &mask).unwrap();
    held.release().unwrap().wait().unwrap();
    assert_eq!(fs::read_to_string(path).unwrap(), "Cpus_allowed_list:\t0\n");
}

#[test]
fn environment_and_streams_are_as_specified() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in");
    fs::write(&input, "from the file\n").unwrap();
    let spec = LaunchSpec {
        stdin: Stream::File(input),
        ..sh("cat; echo $USHER_HEARTBEAT $OMP_TOOL_LIBRARIES $RAYON_NUM_THREADS")
    };
    let spec = spec
        .env("RAYON_NUM_THREADS", "7")
        .heartbeat(Path::new("/page"))
        .ompt_tool(Path::new("/tool.so"))
        .thread_hints()
        .threads(3);
    assert_eq!(output(spec), "from the file\n/page /tool.so 7\n");
    let spec = sh("echo $OMP_NUM_THREADS").thread_hints().threads(3);
    assert_eq!(output(spec), "3\n");
}

/// Returns the output of a held child that is started with a number of threads.
fn output_with_threads(spec: &LaunchSpec, threads: Option<u32>) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let spec = LaunchSpec {
        stdout: Stream::File(path.clone()),
        ..spec.clone()
    };
    let held = hold(&spec).unwrap();
    let mut child = held.start_with_threads(threads).unwrap().finish().unwrap();
    child.wait().unwrap();
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_held_child_gets_the_number_of_threads_at_its_start() {
    let script = "echo $OMP_NUM_THREADS,$OPENBLAS_NUM_THREADS,$RAYON_NUM_THREADS,$GOMAXPROCS,$X";
    let spec = sh_without_threads(script)
        .env("X", "y")
        .env("RAYON_NUM_THREADS", "7");
    let spec = spec.thread_hints();
    assert_eq!(output_with_threads(&spec, Some(16)), "16,16,7,16,y\n");
    assert_eq!(
        output_with_threads(&spec, Some(u32::MAX)),
        "4294967295,4294967295,7,4294967295,y\n"
    );
    assert_eq!(output_with_threads(&spec, None), ",,7,,y\n");
    assert_eq!(
        output_with_threads(&sh_without_threads(script), Some(16)),
        ",,,,\n"
    );
}

#[test]
fn no_variable_takes_precedence_over_a_variable_of_the_user() {
    let variables = |user: &str| {
        let spec = sh_without_threads("").env(user, "2");
        spec.thread_hints().thread_variables
    };
    assert_eq!(
        variables("OMP_NUM_THREADS"),
        ["RAYON_NUM_THREADS", "GOMAXPROCS"]
    );
    let goto = variables("GOTO_NUM_THREADS");
    assert!(!goto.contains(&"OPENBLAS_NUM_THREADS"), "{goto:?}");
    assert!(goto.contains(&"OMP_NUM_THREADS"), "{goto:?}");
    let openblas = variables("OPENBLAS_NUM_THREADS");
    assert!(openblas.contains(&"OMP_NUM_THREADS"), "{openblas:?}");
}

/// Returns the sets of blocked, ignored and caught signals, without the signals 32 and 33, which
/// the C library uses for its threads.
fn signal_sets(status: &str) -> Vec<u64> {
    let set =
        |line: &str| u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
    status
        .lines()
        .map(|line| set(line) & !(0b11 << 31))
        .collect()
}

#[test]
fn signal_dispositions_are_those_of_a_fresh_process() {
    let _forwarder = Forwarder::new(false).unwrap();
    let script = "grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status";
    let standard = output_of(Command::new("sh").args(["-c", script]));
    assert_eq!(signal_sets(&output(sh(script))), signal_sets(&standard));
}

fn output_of(command: &mut Command) -> String {
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

#[test]
fn the_program_leads_its_new_session() {
    let script = "echo $$ $(cut -d' ' -f5,6 /proc/$$/stat)";
    let own = output(LaunchSpec {
        new_session: true,
        ..sh(script)
    });
    let own: Vec<&str> = own.split_whitespace().collect();
    assert!(own[0] == own[1] && own[0] == own[2], "{own:?}");
    let with_us = output(sh(script));
    let with_us: Vec<&str> = with_us.split_whitespace().collect();
    assert_ne!(with_us[0], with_us[2]);
}

#[test]
fn signals_sent_to_the_launcher_reach_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let script = format!(
        "trap 'exit 42' USR1; echo > {}; while :; do :; done",
        ready.display()
    );
    let mut forwarder = Forwarder::new(true).unwrap();
    let spec = LaunchSpec {
        new_session: true,
        ..sh(&script)
    };
    let mut running = hold(&spec).unwrap().release().unwrap();
    until("the trap is set", || ready.exists());
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1)
        .unwrap();
    let exit = running.wait_forwarding(&mut forwarder).unwrap();
    assert_eq!(exit.code(), 42);
}

#[test]
fn a_repeater_runs_the_command_again_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let (input, out) = (dir.path().join("in"), dir.path().join("out"));
    fs::write(&input, "line\n").unwrap();
    let mut repeater = repeat(&LaunchSpec {
        stdin: Stream::File(input),
        stdout: Stream::File(out.clone()),
        new_session: true,
        ..sh("cat; echo $PPID; exit 3")
    })
    .unwrap();
    let mut last_end_ns = 0;
    for _ in 0..3 {
        repeater.start().unwrap();
        let repetition = repeater.finish().unwrap();
        assert_eq!(repetition.exit.code(), 3);
        assert!(repetition.begin_ns >= last_end_ns && repetition.end_ns > repetition.begin_ns);
        last_end_ns = repetition.end_ns;
        let expected = format!("line\n{}\n", repeater.pid());
        assert_eq!(fs::read_to_string(&out).unwrap(), expected);
    }
}

#[test]
fn a_repeater_counts_the_cpu_time_of_the_whole_tree() {
    let mut repeater = repeat(&LaunchSpec::new([
        "sh",
        "-c",
        "python3 -c 'import time\nwhile time.process_time() < 0.3: pass'; true",
    ]))
    .unwrap();
    repeater.start().unwrap();
    let repetition = repeater.finish().unwrap();
    assert!(repetition.exit.success());
    assert!(repetition.exit.cpu_seconds >= 0.3, "{repetition:?}");
    assert!(repetition.seconds() >= 0.3, "{repetition:?}");
}

#[test]
fn dropping_a_repeater_ends_its_program() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("pid");
    for new_session in [true, false] {
        let _ = fs::remove_file(&mark);
        let script = format!(
            "echo $$ > {0}.part; mv {0}.part {0}; while :; do :; done",
            mark.display()
        );
        let mut repeater = repeat(&LaunchSpec {
            new_session,
            ..sh(&script)
        })
        .unwrap();
        repeater.start().unwrap();
        until("the program has started", || mark.exists());
        let pid: i32 = fs::read_to_string(&mark).unwrap().trim().parse().unwrap();
        assert!(state(pid).is_some());
        drop(repeater);
        until("the program has gone", || state(pid).is_none());
    }
}

#[test]
fn a_killed_repeater_is_reported() {
    let mut repeater = repeat(&LaunchSpec::new(["true"])).unwrap();
    let pid = rustix::process::Pid::from_raw(repeater.pid()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let error = repeater
        .start()
        .and_then(|()| repeater.finish())
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("running 'true' failed while communicating with the process"),
        "{error}"
    );
}
