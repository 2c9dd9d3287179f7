// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles C and C++ programs, links them with the shared library and runs them: programs with a
//! limit of memory, with forks and with exceptions, and the programs of the guide. The tests are
//! skipped if there is no compiler.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{include, library, output_of};

/// A compiled program that is linked with the shared library.
struct Program {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Program {
    /// Compiles a source file of this folder. Returns `None` if the library was built in a way that
    /// other compilers cannot link.
    fn of(source: &str, compiler: &str, standard: &str) -> Option<Self> {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        Self::build(&tests.join(source), compiler, standard)
    }

    fn build(source: &Path, compiler: &str, standard: &str) -> Option<Self> {
        let symbols = output_of(Command::new("nm").arg("-D").arg(library()));
        if symbols.contains("__asan_init") {
            usher_skip::skip!("the library needs a sanitizer's runtime");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        for name in ["libusher_tasks.so", "libusher_tasks.so.0"] {
            std::os::unix::fs::symlink(library(), dir.path().join(name)).unwrap();
        }
        let path = dir.path().join("program");
        let mut build = Command::new(compiler);
        build
            .args([standard, "-Wall", "-Wextra", "-Werror", "-I"])
            .arg(include())
            .arg(source)
            .arg("-L")
            .arg(dir.path())
            .args(["-lusher_tasks", "-o"])
            .arg(&path);
        output_of(&mut build);
        Some(Self { dir, path })
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut run = Command::new(&self.path);
        run.args(arguments);
        run.env("LD_LIBRARY_PATH", self.dir.path());
        run.output().unwrap()
    }
}

#[test]
fn uncaught_exceptions_end_the_process() {
    let Some(program) = Program::of("throws.cpp", "c++", "-std=c++17") else {
        return;
    };
    let caught = String::from_utf8(program.run(&["caught"]).stdout).unwrap();
    let text = "tasks are unfinished or have failed: task 7 failed: no such frame\n";
    assert_eq!(caught, text);
    let thrown = program.run(&["thrown"]);
    let text = String::from_utf8(thrown.stderr).unwrap();
    assert!(!thrown.status.success());
    let expected = "libusher_tasks: aborting, because an exception left a task";
    assert!(text.starts_with(expected), "{text}");
}

/// Exceptions of any type reach the caller that waits, and all objects are freed.
#[test]
fn the_wrapper_carries_results_and_exceptions() {
    for compiler in ["c++", "clang++"] {
        let Some(program) = Program::of("wrapper.cpp", compiler, "-std=c++17") else {
            return;
        };
        let output = program.run(&[]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(stdout.lines().count(), 36, "{stdout}");
        assert!(
            stdout.lines().all(|line| line.ends_with(": right")),
            "{stdout}"
        );
    }
}

/// The example of the wrapper, with the output that it documents.
#[test]
fn the_example_of_the_wrapper_works() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tasks");
    let Some(program) = Program::build(&examples.join("futures.cpp"), "c++", "-std=c++17") else {
        return;
    };
    let expected = std::fs::read_to_string(examples.join("futures.expected")).unwrap();
    let output = program.run(&["2"]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        expected,
        "{output:?}"
    );
}

/// Compiles and runs a C program, and checks that it succeeds with the expected output. Reports a
/// skip if there is no compiler.
fn check_output(source: &str, expected: &str) {
    let Some(program) = Program::of(source, "cc", "-std=c11") else {
        return;
    };
    let output = program.run(&[]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout, expected, "{output:?}");
    assert!(output.status.success());
}

#[test]
fn lack_of_memory_is_an_error_that_names_the_task() {
    let expected = [
        // Submitting tasks until there is no memory. Then these tasks run, and another is stored.
        "no memory\nout of memory: a submitted task cannot be stored\nsuccess\nsuccess",
        "no memory\nnamed",
        // Waiting first reports only the number of unfinished tasks. Later it lists all tasks.
        "counted\ntasks are unfinished or have failed\nall\nno frame",
        // Cancelling, registering again and destroying succeed without further memory.
        "success\nall\nno memory\nsuccess",
        // The results for graphs, for blocks, and for blocks that are too large.
        "no memory\nno memory\nno memory\n",
    ];
    check_output("memory.c", &expected.join("\n"));
}

#[test]
fn lack_of_memory_for_queues_is_an_error_at_every_level() {
    let expected = [
        "no memory\nout of memory: the runtime cannot allocate 4194304 queues of ready tasks",
        "success",
        "no memory, 0 ran\nout of memory: the queues of a graph that a task runs cannot be allocated",
        "success, 1 ran\n",
    ];
    check_output("queues.c", &expected.join("\n"));
}

#[test]
fn a_runtime_in_a_forked_child_returns_ended() {
    let expected = [
        "wait: 1, named\nrun: 1, named\nfor: 1, named\nslot: 1, named\ndestroy: 1, named",
        "success\nchild: 0",
        "2 ran\n",
    ];
    check_output("forks.c", &expected.join("\n"));
}

/// A page of the guide in `docs/tasks`.
fn guide(page: &str) -> String {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tasks");
    std::fs::read_to_string(pages.join(page)).unwrap()
}

/// The code blocks of a language on a page.
fn blocks<'a>(page: &'a str, language: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!("```{language}\n");
    let parts: Vec<&str> = page.split(&begin).skip(1).collect();
    (parts.into_iter()).filter_map(|rest| Some(rest.split_once("```")?.0))
}

/// Compiles and runs a program. Returns its standard output and its standard error; `None` without a
/// C compiler.
fn run_source(source: &str) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("program.c");
    std::fs::write(&path, source).unwrap();
    let output = Program::build(&path, "cc", "-std=c11")?.run(&[]);
    assert!(output.status.success());
    let text = String::from_utf8([output.stdout, output.stderr].concat());
    Some(text.unwrap())
}

#[test]
fn the_first_program_of_the_guide_works() {
    let page = guide("start.md");
    let with = |word: &str| blocks(&page, "c").find(|code| code.contains(word)).unwrap();
    let source = with("int main");
    let Some(first) = run_source(source) else {
        return;
    };
    assert_eq!(first, "hello from the first\n");
    let wait = "\tusher_tasks_wait(runtime, NULL);\n";
    assert!(source.contains(wait));
    let expected =
        "hello from the first\ntasks that were never resolved: 2 (missing resolutions: 1)\n";
    let checked = source.replace(wait, with("if (usher_tasks_wait"));
    assert_eq!(run_source(&checked).unwrap(), expected);
}

#[test]
fn the_graph_of_the_guide_prints_its_output() {
    let page = guide("graphs.md");
    let source = blocks(&page, "c").find(|code| code.contains("int main"));
    let Some(printed) = run_source(source.unwrap()) else {
        return;
    };
    assert_eq!(blocks(&page, "text").next(), Some(printed.as_str()));
}
