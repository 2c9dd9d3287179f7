// SPDX-License-Identifier: MIT OR Apache-2.0
//! C and C++ programs that go to the limits: of memory, and of languages.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{include, library, said};

/// A program, linked with the shared library; `None` where that is built so that other
/// compilers cannot link it.
struct Program {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Program {
    /// From a source of this folder.
    fn of(source: &str, compiler: &str, standard: &str) -> Option<Self> {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        Self::build(&tests.join(source), compiler, standard)
    }

    fn build(source: &Path, compiler: &str, standard: &str) -> Option<Self> {
        let symbols = said(Command::new("nm").arg("-D").arg(library()));
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
        said(&mut build);
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
fn exceptions_end_the_process_or_are_caught_inside() {
    let Some(program) = Program::of("throws.cpp", "c++", "-std=c++17") else {
        return;
    };
    let caught = String::from_utf8(program.run(&["caught"]).stdout).unwrap();
    let words = "tasks are left, or have failed: task 7 failed: no such frame\n";
    assert_eq!(caught, words);
    let thrown = program.run(&["thrown"]);
    let words = String::from_utf8(thrown.stderr).unwrap();
    assert!(!thrown.status.success());
    let expected = "libusher_tasks: an exception has left a task, which must catch it";
    assert!(words.starts_with(expected), "{words}");
}

/// Compiles a C program, which says that and succeeds; nothing where there is no compiler.
fn says(source: &str, expected: &str) {
    let Some(program) = Program::of(source, "cc", "-std=c11") else {
        return;
    };
    let output = program.run(&[]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, expected, "{output:?}");
    assert!(output.status.success());
}

#[test]
fn no_memory_is_an_error_that_names_the_task() {
    let expected = [
        "no memory\nnamed",
        // Waiting says how many are left, and later which.
        "counted\ntasks are left, or have failed\nall\nno frame",
        // Cancelling, registering again and destroying take none.
        "success\nall\nno memory\nsuccess",
        // Graphs, blocks, blocks that are too large.
        "no memory\nno memory\nno memory\n",
    ];
    says("memory.c", &expected.join("\n"));
}

#[test]
fn no_memory_for_a_policys_queues_is_an_error_at_every_level() {
    let expected = [
        "no memory\nno memory for 4194304 queues of ready tasks",
        "success",
        "no memory, 0 ran\nno memory for the queues of a graph that a task runs",
        "success, 1 ran\n",
    ];
    says("queues.c", &expected.join("\n"));
}

#[test]
fn a_forked_child_is_told_that_it_has_no_workers() {
    let expected = [
        "wait: 1, named\nrun: 1, named\ndestroy: 1, named",
        "success\nchild: 0",
        "2 ran\n",
    ];
    says("forks.c", &expected.join("\n"));
}

/// The C code of the guide that holds a word.
fn of_the_guide(word: &str) -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tasks.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let codes = guide.split("```c\n").skip(1);
    let mut codes = codes.filter_map(|rest| Some(rest.split_once("```")?.0.to_owned()));
    codes.find(|code| code.contains(word)).unwrap()
}

#[test]
fn the_guides_first_program_does_what_the_guide_says() {
    let dir = tempfile::tempdir().unwrap();
    let said = |source: &str| {
        let path = dir.path().join("hello.c");
        std::fs::write(&path, source).unwrap();
        let output = Program::build(&path, "cc", "-std=c11")?.run(&[]);
        assert!(output.status.success());
        let words = String::from_utf8([output.stdout, output.stderr].concat());
        Some(words.unwrap())
    };
    let source = of_the_guide("int main");
    let Some(first) = said(&source) else { return };
    assert_eq!(first, "hello from the first\n");
    let looks = of_the_guide("if (usher_tasks_wait");
    let wait = "\tusher_tasks_wait(runtime, NULL);\n";
    assert!(source.contains(wait));
    let told = "hello from the first\nnever resolved: 2 (1 more)\n";
    assert_eq!(said(&source.replace(wait, &looks)).unwrap(), told);
}
