// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the header with the library. Values, sizes and offsets must equal a fixed list (`ABI`),
//! and the exported symbols and the inline functions of the header must match the library. The
//! header is compiled as C and as C++, with all warnings as errors.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use usher_tasks::{Groups, TaskStatus};
use usher_tasks_capi::color::{
    ColoringSpec, usher_coloring_base, usher_coloring_header, usher_coloring_shift,
};
use usher_tasks_capi::error::{ErrorCode, usher_tasks_strerror};
use usher_tasks_capi::monitoring::{Format, GroupingCode, WorkerCounters};
use usher_tasks_capi::options::Options;
use usher_tasks_capi::report::{UnfinishedKind, UnfinishedTask};
use usher_tasks_capi::version::usher_tasks_version;

use common::{include, library, output_of};

/// The ABI of this SONAME. Lines may be added, but never changed.
const ABI: &str = "\
USHER_TASKS_OK 0
USHER_TASKS_ERROR_NULL 1
USHER_TASKS_ERROR_OPTIONS 2
USHER_TASKS_ERROR_WORKERS 3
USHER_TASKS_ERROR_THREAD 4
USHER_TASKS_ERROR_MEMORY 5
USHER_TASKS_ERROR_GROUPS 6
USHER_TASKS_ERROR_REGISTERED 7
USHER_TASKS_ERROR_RESOLVED_TOO_OFTEN 8
USHER_TASKS_ERROR_UNFINISHED 9
USHER_TASKS_ERROR_INSIDE 10
USHER_TASKS_ERROR_DEADLOCK 11
USHER_TASKS_ERROR_ENDED 12
USHER_TASKS_ERROR_CYCLE 13
USHER_TASKS_ERROR_RANGE 14
USHER_TASKS_ERROR_TOO_LARGE 15
USHER_TASKS_ERROR_FAILED 16
USHER_TASKS_ERROR_BUSY 17
USHER_TASKS_ERROR_OUTSIDE 18
USHER_TASKS_ERROR_COLORING 19
USHER_TASKS_ERROR_INTERNAL 20
USHER_TASKS_ERROR_FILE 21
USHER_TASKS_ERROR_CANCELLED 22
USHER_TASKS_ERROR_TOO_LATE 23
USHER_TASKS_ERROR_TOO_DEEP 24
USHER_TASKS_ERROR_ISOLATED 25
USHER_TASKS_POLICY_USHER 0
USHER_TASKS_POLICY_PAPER 1
USHER_TASKS_POLICY_FCFS 2
USHER_TASKS_POLICY_LCFS 3
USHER_TASKS_BINDING_LLC 0
USHER_TASKS_BINDING_NONE 1
USHER_TASKS_RUNNING_CPUS 0
USHER_TASKS_RUNNING_ALL 1
USHER_TASKS_PROGRESS_REPORTED 0
USHER_TASKS_PROGRESS_NOT_REPORTED 1
USHER_TASKS_UNFINISHED_FAILED 1
USHER_TASKS_UNFINISHED_UNRESOLVED 2
USHER_TASKS_UNFINISHED_UNREGISTERED 3
USHER_TASKS_UNFINISHED_CYCLE 4
USHER_TASKS_UNFINISHED_SUBMITTED_FAILED 5
USHER_TASKS_STATUS_PENDING 0
USHER_TASKS_STATUS_RUNNING 1
USHER_TASKS_STATUS_READY 2
USHER_TASKS_STATUS_FAILED 3
USHER_TASKS_STATUS_CANCELLED 4
USHER_COLORING_LINE_BYTES 64
USHER_TASKS_PRIORITY_HIGH 4294967294
USHER_TASKS_PRIORITY_LOW 4294967293
sizeof(usher_tasks_options) 64
usher_tasks_options.size 0+8
usher_tasks_options.workers 8+4
usher_tasks_options.policy 12+4
usher_tasks_options.t_groups 16+4
usher_tasks_options.s_groups 20+4
usher_tasks_options.binding 24+4
usher_tasks_options.running 28+4
usher_tasks_options.stack_bytes 32+8
usher_tasks_options.progress 40+4
usher_tasks_options.reserved 44+4
usher_tasks_options.dense_first 48+8
usher_tasks_options.dense_count 56+8
options.size 64
options.workers 3
sizeof(usher_tasks_unfinished) 24
usher_tasks_unfinished.task 0+8
usher_tasks_unfinished.message 8+8
usher_tasks_unfinished.kind 16+4
usher_tasks_unfinished.missing 20+4
sizeof(usher_coloring) 24
usher_coloring.block_bytes 0+8
usher_coloring.header_bytes 8+8
usher_coloring.colors 16+8
USHER_TASKS_FORMAT_CHROME 0
USHER_TASKS_FORMAT_SVG_BY_T 1
USHER_TASKS_FORMAT_SVG_BY_S 2
USHER_TASKS_GROUPING_NONE_REQUESTED 0
USHER_TASKS_GROUPING_TIME 1
USHER_TASKS_GROUPING_DATA 2
USHER_TASKS_GROUPING_NONE 3
sizeof(usher_tasks_counters) 80
usher_tasks_counters.size 0+8
usher_tasks_counters.tasks 8+8
usher_tasks_counters.steals_llc 16+8
usher_tasks_counters.steals_package 24+8
usher_tasks_counters.steals_machine 32+8
usher_tasks_counters.outside 40+8
usher_tasks_counters.sent 48+8
usher_tasks_counters.group_moves 56+8
usher_tasks_counters.sleeps 64+8
usher_tasks_counters.asleep_ns 72+8
";

/// Compiles `tests/layout.c` with the options in `language`, with all warnings as errors.
fn layout(dir: &Path, compiler: &str, language: &[&str]) -> PathBuf {
    let program = dir.join(compiler);
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut build = Command::new(compiler);
    build
        .args(language)
        .args(["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(include())
        .arg(crate_dir.join("tests/layout.c"))
        .arg("-o")
        .arg(&program);
    output_of(&mut build);
    program
}

fn layouts(dir: &Path) -> [PathBuf; 3] {
    [
        layout(dir, "cc", &["-std=c11"]),
        layout(dir, "clang", &["-std=c99"]),
        layout(dir, "c++", &["-std=c++17", "-x", "c++"]),
    ]
}

/// Converts `ResolvedTooOften` to `RESOLVED_TOO_OFTEN`.
fn upper_snake(name: &str) -> String {
    let mut name_of_code = String::new();
    for (at, letter) in name.char_indices() {
        if at > 0 && letter.is_ascii_uppercase() {
            name_of_code.push('_');
        }
        name_of_code.push(letter.to_ascii_uppercase());
    }
    name_of_code
}

/// Returns the lines of `ABI`, computed from the definitions of the crate.
fn crate_abi() -> String {
    let mut lines = "USHER_TASKS_OK 0\n".to_owned();
    for code in ErrorCode::ALL {
        let name = upper_snake(&format!("{code:?}"));
        writeln!(lines, "USHER_TASKS_ERROR_{name} {}", code as i32).unwrap();
    }
    let kinds = [
        UnfinishedKind::Failed,
        UnfinishedKind::Unresolved,
        UnfinishedKind::Unregistered,
        UnfinishedKind::Cycle,
        UnfinishedKind::SubmittedFailed,
    ];
    for (policy, name) in ["USHER", "PAPER", "FCFS", "LCFS"].iter().enumerate() {
        let own = format!("{:?}", common::options(1, policy as u32, (0, 0)).policy());
        assert!(own.to_uppercase().contains(name), "{own} is {name}");
        writeln!(lines, "USHER_TASKS_POLICY_{name} {policy}").unwrap();
    }
    for (binding, name) in ["LLC", "NONE"].iter().enumerate() {
        let bound = Options {
            binding: binding as u32,
            ..common::options(1, 0, (0, 0))
        };
        assert!(bound.runtime().is_ok());
        writeln!(lines, "USHER_TASKS_BINDING_{name} {binding}").unwrap();
    }
    for (running, name) in ["CPUS", "ALL"].iter().enumerate() {
        let limited = Options {
            running: running as u32,
            ..common::options(1, 0, (0, 0))
        };
        assert!(limited.runtime().is_ok());
        writeln!(lines, "USHER_TASKS_RUNNING_{name} {running}").unwrap();
    }
    for (progress, name) in ["REPORTED", "NOT_REPORTED"].iter().enumerate() {
        let reported = Options {
            progress: progress as u32,
            ..common::options(1, 0, (0, 0))
        };
        assert!(reported.runtime().is_ok());
        writeln!(lines, "USHER_TASKS_PROGRESS_{name} {progress}").unwrap();
    }
    for kind in kinds {
        let name = upper_snake(&format!("{kind:?}"));
        writeln!(lines, "USHER_TASKS_UNFINISHED_{name} {}", kind as u32).unwrap();
    }
    let statuses = [
        (TaskStatus::Pending, "PENDING"),
        (TaskStatus::Running, "RUNNING"),
        (TaskStatus::Ready, "READY"),
        (TaskStatus::Panicked, "FAILED"),
        (TaskStatus::Cancelled, "CANCELLED"),
    ];
    for (status, name) in statuses {
        writeln!(lines, "USHER_TASKS_STATUS_{name} {}", status as i32).unwrap();
    }
    let line_bytes = usher_tasks::color::LINE_BYTES;
    writeln!(lines, "USHER_COLORING_LINE_BYTES {line_bytes}").unwrap();
    for (priority, name) in [
        (Groups::HIGH_PRIORITY, "HIGH"),
        (Groups::LOW_PRIORITY, "LOW"),
    ] {
        writeln!(lines, "USHER_TASKS_PRIORITY_{name} {}", priority.t).unwrap();
    }
    lines += &offsets();
    lines
}

macro_rules! offsets {
    ($c:literal, $rust:ty: $($field:ident),*) => {{
        let mut lines = vec![format!("sizeof({}) {}\n", $c, size_of::<$rust>())];
        $(lines.push(format!(
            "{}.{} {}+{}\n", $c, stringify!($field), offset_of!($rust, $field),
            bytes(|of: &$rust| size_of_val(&of.$field)),
        ));)*
        lines.concat()
    }};
}

/// Returns the size of a field. `size` gets a structure of zeros and returns the size of one of its
/// fields.
fn bytes<T>(size: impl Fn(&T) -> usize) -> usize {
    let blank = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the structures of the header consist of numbers and pointers, for which 0 is a valid
    // value.
    size(unsafe { blank.assume_init_ref() })
}

fn offsets() -> String {
    let made = common::options(3, 0, (0, 0));
    [
        offsets!("usher_tasks_options", Options: size, workers, policy, t_groups, s_groups,
            binding, running, stack_bytes, progress, reserved, dense_first, dense_count),
        format!(
            "options.size {}\noptions.workers {}\n",
            made.size, made.workers
        ),
        offsets!("usher_tasks_unfinished", UnfinishedTask: task, message, kind, missing),
        offsets!("usher_coloring", ColoringSpec: block_bytes, header_bytes, colors),
        Format::ALL
            .map(|format| {
                let name = upper_snake(&format!("{format:?}"));
                format!("USHER_TASKS_FORMAT_{name} {}\n", format as u32)
            })
            .concat(),
        GroupingCode::ALL
            .map(|grouping| {
                let name = upper_snake(&format!("{grouping:?}"));
                format!("USHER_TASKS_GROUPING_{name} {}\n", grouping as u32)
            })
            .concat(),
        offsets!(
            "usher_tasks_counters", WorkerCounters: size, tasks, steals_llc, steals_package,
            steals_machine, outside, sent, group_moves, sleeps, asleep_ns
        ),
    ]
    .concat()
}

#[test]
fn header_and_crate_agree_and_keep_the_abi() {
    let dir = tempfile::tempdir().unwrap();
    let own = format!("USHER_TASKS_VERSION {}\n", usher_tasks_version());
    assert_eq!(crate_abi(), ABI);
    for program in layouts(dir.path()) {
        let output = output_of(Command::new(program).arg("abi"));
        assert_eq!(output, own.clone() + ABI);
    }
}

/// A program that uses the macros and the inline functions of the header.
const INLINED: &str = "\
#include <usher_tasks.h>
int main(void)
{
\tusher_tasks_options options = USHER_TASKS_OPTIONS_INIT(3);
\tusher_coloring coloring = {4096, 64, 8};
\tuintptr_t header = usher_coloring_inline_header(&coloring, 5000);
\treturn options.workers == 3 && header >= 4096 && USHER_TASKS_VERSION > 0 ? 0 : 1;
}
";

#[test]
fn inline_functions_compile_without_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let cpp = ["-std=c++17", "-Wold-style-cast", "-x", "c++"];
    let c = ["-std=c11", "-Wbad-function-cast", "-x", "c"];
    for (compiler, own) in [("c++", cpp), ("clang++", cpp), ("cc", c), ("clang", c)] {
        let source = dir.path().join("program.c");
        let program = dir.path().join("program");
        std::fs::write(&source, INLINED).unwrap();
        let mut build = Command::new(compiler);
        build
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"])
            .args(["-Wsign-conversion", "-Wcast-qual", "-Wshadow", "-I"])
            .arg(include())
            .args(own)
            .arg(&source)
            .arg("-o")
            .arg(&program);
        output_of(&mut build);
        output_of(&mut Command::new(&program));
    }
}

#[test]
fn the_wrapper_compiles_without_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrapper.cpp");
    for compiler in ["c++", "clang++"] {
        let mut build = Command::new(compiler);
        build
            .args([
                "-std=c++17",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-c",
            ])
            .args([
                "-Wconversion",
                "-Wsign-conversion",
                "-Wcast-qual",
                "-Wshadow",
            ])
            .args(["-Wold-style-cast", "-I"])
            .arg(include())
            .arg(&source)
            .arg("-o")
            .arg(dir.path().join("wrapper.o"));
        output_of(&mut build);
    }
}

#[test]
fn every_error_has_a_distinct_description() {
    let meaning = |code| {
        // SAFETY: the function returns static strings.
        unsafe { CStr::from_ptr(usher_tasks_strerror(code)) }
            .to_str()
            .unwrap()
    };
    let meanings: BTreeSet<&str> = (0..=25).map(meaning).collect();
    assert_eq!(meanings.len(), 26);
    for unknown in [-1, 26, i32::MIN, i32::MAX] {
        assert_eq!(meaning(unknown), "unknown error");
    }
}

/// Returns the names that the header declares as exported.
fn declared() -> BTreeSet<String> {
    let headers = [
        "usher_tasks.h",
        "usher_tasks_depend.h",
        "usher_tasks_fork.h",
        "usher_tasks_graph.h",
        "usher_tasks_loops.h",
        "usher_tasks_wait.h",
    ];
    let header = headers.map(|name| std::fs::read_to_string(include().join(name)).unwrap());
    let code = header.concat().replace('\n', " ");
    let marked = code.split("USHER_TASKS_API ").skip(1);
    let names = marked.filter_map(|after| after.split_once('('));
    names
        .map(|(before, _)| {
            let name = before.rsplit([' ', '\t', '*']).next();
            name.unwrap().to_owned()
        })
        .filter(|name| name.starts_with("usher_"))
        .collect()
}

#[test]
fn exactly_the_declared_names_are_exported() {
    let symbols = output_of(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library()),
    );
    let exported: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .map(|name| name.split('@').next().unwrap().to_owned())
        // Names of symbols that a sanitizer adds are left out.
        .filter(|name| !name.starts_with("__") && name != "rust_eh_personality")
        .collect();
    assert_eq!(exported, declared());
    assert!(exported.len() > 30);
}

#[test]
fn the_library_has_its_soname_and_needs_only_the_system() {
    let dynamic = output_of(Command::new("readelf").args(["-d", "-W"]).arg(library()));
    let of = |tag: &str| -> Vec<&str> {
        let lines = dynamic.lines().filter(|line| line.contains(tag));
        lines
            .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']')))
            .collect()
    };
    assert_eq!(of("(SONAME)"), ["libusher_tasks.so.0"]);
    const SYSTEM: [&str; 7] = [
        "libc.so",
        "libgcc_s.so",
        "libm.so",
        "libpthread.so",
        "libdl.so",
        "librt.so",
        "ld-linux",
    ];
    for needed in of("(NEEDED)") {
        assert!(SYSTEM.iter().any(|own| needed.starts_with(own)), "{needed}");
    }
}

#[test]
fn inline_arithmetic_matches_the_crate() {
    let seed = 7;
    eprintln!("seed {seed}");
    let mut random = oorandom::Rand64::new(seed);
    let mut cases = String::new();
    let mut expected = String::new();
    for _ in 0..20_000 {
        let block_bytes = 1_usize << random.rand_range(6..24);
        let colors = random.rand_range(1..65) as usize;
        let address = (random.rand_u64() >> random.rand_range(0..40)) as usize;
        let c = ColoringSpec {
            block_bytes,
            header_bytes: 8,
            colors,
        };
        let inside = std::ptr::without_provenance(address);
        let Ok(own) = usher_tasks::color::Coloring::new(block_bytes, 8, colors) else {
            continue;
        };
        let (base, header) = (own.base(address), own.header(address));
        // SAFETY: `c` is readable, and the functions do not dereference the addresses.
        unsafe {
            assert_eq!(usher_coloring_base(&raw const c, inside).addr(), base);
            assert_eq!(usher_coloring_header(&raw const c, inside).addr(), header);
            let at = std::ptr::without_provenance(base);
            assert_eq!(usher_coloring_shift(&raw const c, at), own.shift(base));
        }
        writeln!(cases, "{block_bytes} 8 {colors} {address}").unwrap();
        writeln!(expected, "{base} {} {header}", own.shift(base)).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    for program in layouts(dir.path()) {
        let mut run = Command::new(program);
        run.arg("color")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut run = run.spawn().unwrap();
        let mut to = run.stdin.take().unwrap();
        let cases = cases.clone();
        let feeds = std::thread::spawn(move || to.write_all(cases.as_bytes()).unwrap());
        let output = run.wait_with_output().unwrap();
        feeds.join().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
}
