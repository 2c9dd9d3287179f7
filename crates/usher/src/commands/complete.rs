// SPDX-License-Identifier: GPL-2.0-only
//! `usher complete`, a hidden command that the completion scripts call: prints the values that
//! exist only at run time, such as the names and pids of managed programs.
//!
//! 1. Find the argument that the last word belongs to ([`Request::parse`]). The words before the
//!    last one select a command and options, as clap would parse them.
//! 2. Read the values of this argument ([`Source`]). The value name of an argument determines its
//!    source.
//! 3. Print each value with the prefix that the last word has already: the value, a tab and a
//!    description per line.
//!
//! A shell inserts the values unquoted, and other users choose the names of their programs.
//! Values that contain other characters than those of [`is_plain`] are therefore left out; the pid
//! of such a program remains.
//!
//! The command never fails and prints no errors, because it would disturb the line that the user
//! edits. It answers within [`TIME_LIMIT`], or prints nothing: a thread reads the values, and the
//! process ends without waiting for this thread after the limit.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use usher_store::{ProfileEntry, Store};

use crate::api::Program;
use crate::cli;
use crate::cli::options::{Global, StoreArg};
use crate::client::{Daemon, WaitLimits};
use crate::commands::schema;
use crate::daemon::rules::candidates::Candidates;
use crate::daemon::rules::process::MatchedProcess;
use crate::failure::Outcome;
use crate::output::{Output, shown};
use crate::runtime;

/// Upper limit of the time for the values, and for each wait for a daemon.
const TIME_LIMIT: Duration = Duration::from_millis(80);
/// Upper limit of the length of a description, in characters.
const ABOUT_MAX: usize = 60;

/// Prints the values of an argument that exist only at run time
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The words of the command line after `usher`; the last one is completed
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
    #[command(flatten)]
    store: StoreArg,
}

/// Where the values of an argument come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Names and pids of managed programs.
    Programs,
    /// Pids of processes that this user may attach.
    Processes,
    /// Names of stored profiles.
    Profiles,
    /// Commands with a JSON Schema.
    Schemas,
}

impl Source {
    fn of(arg: &clap::Arg) -> Option<Self> {
        match arg.get_value_names()?.first()?.as_str() {
            "PROGRAM" => Some(Self::Programs),
            "PID" => Some(Self::Processes),
            "NAME|ID" => Some(Self::Profiles),
            "COMMAND" => Some(Self::Schemas),
            _ => None,
        }
    }
}

/// Returns whether an argument has values that exist only at run time.
pub fn has_values(arg: &clap::Arg) -> bool {
    Source::of(arg).is_some()
}

/// A value of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Completion {
    value: String,
    about: String,
}

impl Completion {
    fn new(value: impl ToString, about: &str) -> Self {
        Self {
            value: value.to_string(),
            about: shown(about).chars().take(ABOUT_MAX).collect(),
        }
    }
}

/// The value that the user completes.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    source: Source,
    /// The beginning of the value.
    prefix: String,
    /// The part of the word before the value: `--option=`, or nothing.
    option: String,
    /// The other words of the command line.
    words: Vec<String>,
    /// The value of `--runtime-dir`.
    runtime_dir: Option<PathBuf>,
    /// The value of `--store`.
    store: Option<PathBuf>,
}

/// The state of the walk over the words.
struct Walk<'a> {
    command: &'a clap::Command,
    /// The option whose value is next, and the number of its values so far.
    option: Option<(&'a clap::Arg, usize)>,
    /// Number of positional values of the command so far.
    positionals: usize,
    runtime_dir: Option<PathBuf>,
    store: Option<PathBuf>,
}

impl<'a> Walk<'a> {
    fn find_option(&self, word: &str) -> Option<&'a clap::Arg> {
        let long = word.strip_prefix("--")?;
        let mut args = self.command.get_arguments();
        args.find(|arg| arg.get_long() == Some(long) && takes_values(arg))
    }

    /// Reads the next word.
    fn advance(&mut self, word: &str) {
        // Bash splits `--option=value` into three words.
        if word == "=" {
            return;
        }
        if word.starts_with('-') {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            self.option = self.find_option(name).map(|option| (option, 0));
            if let (Some((option, _)), Some(value)) = (self.option, value) {
                self.record_path(option, value);
                self.option = None;
            }
        } else if let Some((option, count)) = self.option {
            self.record_path(option, word);
            self.option = (count + 1 < values_max(option)).then_some((option, count + 1));
        } else if let (0, Some(found)) = (self.positionals, self.command.find_subcommand(word)) {
            self.command = found;
        } else {
            self.positionals += 1;
        }
    }

    /// Records the value of `--runtime-dir` or `--store`.
    fn record_path(&mut self, option: &clap::Arg, value: &str) {
        match option.get_long() {
            Some("runtime-dir") => self.runtime_dir = Some(value.into()),
            Some("store") => self.store = Some(value.into()),
            _ => {}
        }
    }

    /// Returns the positional argument that the next word belongs to.
    fn positional(&self) -> Option<&'a clap::Arg> {
        let found = self.command.get_positionals().nth(self.positionals);
        let mut all = self.command.get_positionals();
        found.or_else(|| all.find(|arg| values_max(arg) > 1))
    }
}

fn takes_values(arg: &clap::Arg) -> bool {
    values_max(arg) > 0
}

fn values_max(arg: &clap::Arg) -> usize {
    arg.get_num_args().map_or(1, |range| range.max_values())
}

impl Request {
    /// Returns the request of the words after `usher`; `None` if the last word is no value that
    /// exists only at run time. The command must be built.
    fn parse(command: &clap::Command, words: &[String]) -> Option<Self> {
        let (last, before) = words.split_last()?;
        // The words after `--` belong to another program.
        if before.iter().any(|word| word == "--") {
            return None;
        }
        let mut walk = Walk {
            command,
            option: None,
            positionals: 0,
            runtime_dir: None,
            store: None,
        };
        before.iter().for_each(|word| walk.advance(word));
        let (mut option, mut prefix) = (String::new(), last.as_str());
        let arg = match last.split_once('=') {
            // Bash passes the sign alone if no value has been typed.
            Some(("", "")) => {
                prefix = "";
                walk.option.map(|(arg, _)| arg)
            }
            Some((name, value)) if name.starts_with('-') => {
                (option, prefix) = (format!("{name}="), value);
                walk.find_option(name)
            }
            _ if last.starts_with('-') => None,
            _ => walk.option.map_or(walk.positional(), |(arg, _)| Some(arg)),
        };
        Some(Self {
            source: Source::of(arg?)?,
            prefix: prefix.to_owned(),
            option,
            words: before.to_vec(),
            runtime_dir: walk.runtime_dir,
            store: walk.store,
        })
    }

    fn read(&self) -> Vec<Completion> {
        match self.source {
            Source::Programs => programs(self.runtime_dir.as_deref()).unwrap_or_default(),
            Source::Processes => processes(),
            Source::Profiles => profiles(self.store.as_deref()).unwrap_or_default(),
            Source::Schemas => schemas(&self.words),
        }
    }

    /// Returns the lines to print.
    fn lines(&self, all: &[Completion]) -> String {
        let mut seen: BTreeSet<&str> = self.words.iter().map(String::as_str).collect();
        let mut text = String::new();
        for one in all {
            let is_match = one.value.starts_with(&self.prefix) && is_plain(&one.value);
            if is_match && seen.insert(&one.value) {
                let _ = writeln!(text, "{}{}\t{}", self.option, one.value, one.about);
            }
        }
        text
    }
}

/// Returns whether every shell reads the word as itself.
fn is_plain(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+-@/,".contains(c);
    !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain)
}

fn programs(runtime_dir: Option<&Path>) -> Option<Vec<Completion>> {
    let limits = WaitLimits {
        timeout: TIME_LIMIT,
        end: None,
    };
    let daemons = Daemon::find_all(runtime_dir, &limits).into_iter();
    let states = daemons.filter_map(|mut daemon| daemon.status().ok());
    let programs: Vec<Program> = states.flat_map(|state| state.programs).collect();
    let names = programs.iter().map(|one| {
        let about = format!("process {}: {}", one.pid, one.command);
        Completion::new(&one.name, &about)
    });
    let pids = programs.iter().map(|one| {
        let about = format!("{}: {}", one.name, one.command);
        Completion::new(one.pid, &about)
    });
    Some(names.chain(pids).collect())
}

fn processes() -> Vec<Completion> {
    let proc_root = Path::new("/proc");
    let own = rustix::process::geteuid().as_raw();
    let candidates = Candidates::read(proc_root);
    let allowed = |pid: &i32| candidates.check(*pid, own).is_ok();
    let about = |pid| {
        let process = MatchedProcess::of_running(proc_root, pid, own);
        Completion::new(pid, &process.command)
    };
    candidates.pids().filter(allowed).map(about).collect()
}

fn profiles(store: Option<&Path>) -> Option<Vec<Completion>> {
    let path = runtime::store_path(store);
    let all = Store::open_if_present(&path).ok()??.store.list().ok()?;
    let one = |entry: &ProfileEntry| {
        let about = format!("profile {}", entry.id());
        Completion::new(&entry.profile.name, &about)
    };
    Some(all.iter().map(one).collect())
}

/// Returns the next words of the commands that begin with the words after `schema`.
fn schemas(words: &[String]) -> Vec<Completion> {
    let given = words.iter().skip_while(|word| *word != "schema").skip(1);
    let given: Vec<&str> = given.map(String::as_str).collect();
    let next = |one: &schema::CommandAnswer| {
        let words: Vec<&str> = one.command.split(' ').collect();
        let next = words.strip_prefix(given.as_slice())?.first()?;
        Some(Completion::new(next, ""))
    };
    schema::ANSWERS.iter().filter_map(next).collect()
}

/// Prints the values of the argument that the last word belongs to.
pub fn run(args: &Args, global: &Global, out: Output) -> Outcome {
    let words = args.words.iter().map(|word| word.to_string_lossy().into());
    let words: Vec<String> = words.collect();
    let mut command = cli::visible_command();
    command.build();
    let Some(mut request) = Request::parse(&command, &words) else {
        return Ok(0);
    };
    let dir = request.runtime_dir.take();
    request.runtime_dir = dir.or_else(|| global.runtime_dir.clone());
    let store = request.store.take();
    request.store = store.or_else(|| args.store.path.clone());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let text = request.lines(&request.read());
        let _ = sender.send(text);
    });
    let text = receiver.recv_timeout(TIME_LIMIT).unwrap_or_default();
    let _ = out.text(&text);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Request> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let mut command = cli::visible_command();
        command.build();
        Request::parse(&command, &words)
    }

    #[test]
    fn the_source_follows_from_the_words_before() {
        use Source::{Processes, Profiles, Programs, Schemas};
        for (line, source, prefix) in [
            ("detach ", Programs, ""),
            ("detach 12 pi", Programs, "pi"),
            ("--json wait pi", Programs, "pi"),
            ("--color never explain pi", Programs, "pi"),
            ("status --color=never pi", Programs, "pi"),
            ("attach --name x 4", Processes, "4"),
            ("bg --attach 4", Processes, "4"),
            ("bg --attach 4 5 6", Processes, "6"),
            ("bg --attach =", Processes, ""),
            ("bg --attach = 4", Processes, "4"),
            ("sched explain 1", Processes, "1"),
            ("profile show z", Profiles, "z"),
            ("profile export --out f z", Profiles, "z"),
            ("schema ", Schemas, ""),
            ("schema profile s", Schemas, "s"),
        ] {
            let request = parse(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(
                (request.source, &*request.prefix),
                (source, prefix),
                "{line}"
            );
            assert_eq!(request.option, "", "{line}");
        }
        let request = parse("bg --attach=4").unwrap();
        assert_eq!((&*request.prefix, &*request.option), ("4", "--attach="));
        let request = parse("--runtime-dir /a profile rm --store=/b z").unwrap();
        assert_eq!(request.runtime_dir, Some("/a".into()));
        assert_eq!(request.store, Some("/b".into()));
    }

    #[test]
    fn other_words_have_no_values_at_run_time() {
        for line in [
            "",
            "det",
            "detach --js",
            "detach --color ",
            "attach --name ",
            "explain one two",
            "run -- detach ",
            "run detach ",
            "bg --policy u",
            "bg --attach 4 --policy u",
            "nonsense ",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn values_that_a_shell_would_interpret_are_left_out() {
        let request = parse("detach 7 ").unwrap();
        let names = [
            "a", "$(id)", "b c", "x;y", "-o", "b.2", "~", "7", "a", "f*", "",
        ];
        let all: Vec<Completion> = names.map(|name| Completion::new(name, "\u{1b}[2J")).into();
        let text = request.lines(&all);
        assert_eq!(text, "a\t\\u{1b}[2J\nb.2\t\\u{1b}[2J\n");
        let request = parse("bg --attach=4").unwrap();
        let all = [4, 45, 54].map(|pid| Completion::new(pid, ""));
        assert_eq!(request.lines(&all), "--attach=4\t\n--attach=45\t\n");
    }

    #[test]
    fn schemas_are_completed_word_by_word() {
        let values = |line: &str| {
            let request = parse(line).unwrap();
            let text = request.lines(&schemas(&request.words));
            text.lines()
                .map(|line| line.trim().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            values("schema sched st"),
            ["start", "stop", "status", "stats"]
        );
        assert_eq!(values("schema sched"), ["sched"]);
        assert!(values("schema status s").is_empty());
    }
}
