// SPDX-License-Identifier: GPL-2.0-only
//! The command line of `usher`: global options, the list of commands, and the one-line format of
//! usage errors.
//!
//! clap parses the arguments. Two things differ from clap's defaults. An environment variable that
//! is set to an empty value counts as unset. An error is printed in one line with clap's tip and
//! the help command to use. `--color` is read before clap parses, because it also applies to help
//! output.
//!
//! The one-line format names a similar option for a long option with one dash too few. Help and the
//! version go to clap's own stream and have exit status 0. A usage error, and help because of
//! missing arguments, has exit status 125. The cost is linear in the number of arguments and
//! commands.

pub mod environment;
pub mod numbers;
pub mod options;
pub mod target;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    advise, attach, bg, calibration_worker, complete, completions, daemon, detach, doctor, explain,
    keeper, man, mix, plan, profile, replay, run, sched, schema, sim, slurm, status, top, topo,
    undo, wait,
};
use crate::failure;
use crate::output::Output;
use options::Global;

/// Gives each parallel program cores of its own (a seat) along cache boundaries, as many as its
/// scalability justifies, so that all programs together finish as early as possible.
#[derive(Debug, Parser)]
#[command(
    name = "usher",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = false,
    infer_subcommands = false,
    after_help = "\
Start here:
  usher topo                               draw the machine
  usher doctor                             list the features of this machine that Usher can use
  usher run -- x264 -o out.264 in.y4m      run a program on CPUs of its own (its seat)
  usher status                             show the seat of each program
  usher explain                            show the reasons for the seats, and alternatives

`usher COMMAND --help` shows examples for each command. Usher runs an unknown
COMMAND as the program `usher-COMMAND` from PATH, as git does.

Exit status: the status of the program that Usher started (128+N if signal N ended it);
125 if Usher itself failed, 126 if the program cannot be executed, 127 if the program
does not exist."
)]
pub struct Cli {
    /// The options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands, in the order in which help lists them.
#[derive(Debug, Subcommand)]
#[allow(
    clippy::large_enum_variant,
    reason = "each process has only one value of this type"
)]
pub enum Command {
    Run(run::Args),
    Advise(advise::Args),
    Bg(bg::Args),
    Attach(attach::Args),
    Detach(detach::Args),
    Wait(wait::Args),
    Status(status::Args),
    Top(top::Args),
    Explain(explain::Args),
    Topo(topo::Args),
    Doctor(doctor::Args),
    Profile(profile::Args),
    Plan(plan::Args),
    Sched(sched::Args),
    Sim(sim::Args),
    Slurm(slurm::Args),
    Mix(mix::Args),
    Daemon(daemon::Args),
    Undo(undo::Args),
    Replay(replay::Args),
    Completions(completions::Args),
    Schema(schema::Args),
    Man(man::Args),
    #[command(hide = true)]
    Complete(complete::Args),
    #[command(hide = true)]
    Keeper(keeper::Args),
    #[command(hide = true)]
    CalibrationWorker(calibration_worker::Args),
    /// `usher-NAME` beside this program or in PATH.
    #[command(external_subcommand)]
    External(Vec<OsString>),
}

impl Command {
    /// Returns what the standard output of a command contains that has no answer in JSON; `None` for
    /// other commands.
    pub fn output_without_json(&self) -> Option<&'static str> {
        match self {
            Self::Run(_) => Some("the output of the program"),
            Self::Bg(args) if !args.attaches() => Some("the output of the program"),
            Self::Daemon(args) if !args.is_request() => Some("the output of the service"),
            Self::Completions(_) => Some("the completion script"),
            _ => None,
        }
    }

    /// Returns whether a user starts this command. Usher itself and the completion scripts start
    /// the others.
    pub fn is_public(&self) -> bool {
        !matches!(
            self,
            Self::Complete(_) | Self::Keeper(_) | Self::CalibrationWorker(_)
        )
    }
}

/// Returns the clap command, for help, man pages and completions.
pub fn command() -> clap::Command {
    without_empty_variables(Cli::command())
}

/// Returns the clap command without hidden commands, for completions and suggestions.
pub fn visible_command() -> clap::Command {
    let all = command();
    let is_visible = |sub: &&clap::Command| !sub.is_hide_set();
    clap::Command::new("usher")
        .version(env!("CARGO_PKG_VERSION"))
        .args(all.get_arguments().cloned())
        .subcommands(all.get_subcommands().filter(is_visible).cloned())
}

/// Makes options ignore environment variables that are set to an empty value.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &clap::Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    command
        .mut_args(|arg| match is_empty(&arg) {
            true => arg.env(None::<&str>),
            false => arg,
        })
        .mut_subcommands(without_empty_variables)
}

/// Parses the command line, and warns of unknown environment variables.
///
/// # Errors
/// The exit status, after help or the version was printed, or a one-line message about invalid
/// arguments.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<(Cli, Output), ExitCode> {
    let args: Vec<OsString> = args.into_iter().collect();
    let command = command().color(help_color(&args));
    let parsed = command
        .try_get_matches_from(&args)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed {
        Ok(cli) => {
            if cli.command.is_public() {
                let warnings = environment::warnings(std::env::vars_os());
                warnings.iter().for_each(|text| failure::print_error(text));
            }
            let out = Output::new(cli.global.json, cli.global.color);
            Ok((cli, out))
        }
        Err(error) => Err(refuse(&error, &args)),
    }
}

/// Returns clap's message about an unknown command.
pub fn unknown_command(args: &[OsString]) -> String {
    let argv = std::iter::once(OsString::from("usher")).chain(args.iter().cloned());
    // Without external commands, clap reports an unknown command and suggests a similar one.
    let strict = clap::Command::new("usher")
        .subcommand_required(true)
        .subcommands(visible_command().get_subcommands().cloned());
    match strict.try_get_matches_from(argv) {
        Ok(_) => "unknown command".to_owned(),
        Err(error) => explain(&error, &[]),
    }
}

/// Prints help unchanged, and an error in one line.
fn refuse(error: &clap::Error, args: &[OsString]) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let printed = error.print().and_then(|()| io::stdout().flush());
            let printed = printed.context("writing to standard output");
            failure::exit_code(printed.map(|()| 0))
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(failure::OWN)
        }
        _ => {
            failure::print_error(&explain(error, args));
            ExitCode::from(failure::OWN)
        }
    }
}

/// Formats a clap error in one line: the error, clap's tips, where to find help.
fn explain(error: &clap::Error, args: &[OsString]) -> String {
    let text = error.render().to_string();
    let mut line = String::new();
    for part in text.split("\n\n").map(str::trim) {
        if part.starts_with("Usage: ") || part.starts_with("For more information") {
            continue;
        }
        for (at, text) in part.lines().map(str::trim).enumerate() {
            let text = text.strip_prefix("error: ").unwrap_or(text);
            let (text, is_tip) = match text.strip_prefix("tip: ") {
                Some(tip) => (tip, true),
                None => (text, false),
            };
            let joint = match line.is_empty() {
                true => "",
                false if is_tip || at == 0 => "; ",
                false => " ",
            };
            line = format!("{line}{joint}{text}");
        }
    }
    let root = command();
    let (mut within, mut names) = (&root, String::new());
    for arg in args.iter().skip(1) {
        if let Some(found) = within.find_subcommand(arg) {
            within = found;
            names = format!("{names}{} ", found.get_name());
        }
    }
    if error.kind() == ErrorKind::UnknownArgument
        && let Some((given, option)) = single_dash(error, within, args)
    {
        return format!(
            "unknown option '{given}'; a similar option exists: '{option}'; see 'usher {names}--help'"
        );
    }
    format!("{line}; see 'usher {names}--help'")
}

/// Returns the word of an unknown option, and the closest long option, if the word is a long option
/// with one dash too few, possibly misspelt. clap reports only a dash and one letter of such a
/// word; for any other unknown option, clap's message is complete and the result is `None`.
fn single_dash(
    error: &clap::Error,
    command: &clap::Command,
    args: &[OsString],
) -> Option<(String, String)> {
    let Some(ContextValue::String(reported)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let mut letters = reported.strip_prefix('-')?.chars();
    let letter = letters.next().filter(|&letter| letter != '-')?;
    if letters.next().is_some() {
        return None;
    }
    let words = args.iter().skip(1).filter_map(|arg| arg.to_str());
    let mut words = words.take_while(|&word| word != "--");
    // The letter may follow known one-letter options in the same word.
    let (word, name) = words.find_map(|word| {
        let name = word.strip_prefix('-')?;
        let is_reported = !name.starts_with('-') && name.contains(letter);
        is_reported.then_some((word, name))
    })?;
    let name = name.split('=').next().filter(|name| name.len() > 1)?;
    let options = command.get_arguments().filter_map(clap::Arg::get_long);
    let option = usher_model::closest_name(name, options)?;
    Some((word.to_owned(), format!("--{option}")))
}

/// Reads `--color` before clap parses the arguments, so that it also applies to help output.
fn help_color(args: &[OsString]) -> ColorChoice {
    let words: Vec<&str> = args.iter().filter_map(|a| a.to_str()).collect();
    let mut words = words.iter().take_while(|&&w| w != "--");
    let mut choice = ColorChoice::Auto;
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--color") {
            Some("") => words.next().copied(),
            Some(rest) => rest.strip_prefix('='),
            None => continue,
        };
        choice = match value {
            Some("always") => ColorChoice::Always,
            Some("never") => ColorChoice::Never,
            _ => choice,
        };
    }
    choice
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use super::*;

    #[test]
    fn the_clap_definition_is_valid() {
        command().debug_assert();
    }

    /// Calls a function for a command and all commands below it, with the words that select each.
    fn for_each(
        command: &clap::Command,
        words: &[String],
        call: &mut impl FnMut(&clap::Command, &[String]),
    ) {
        call(command, words);
        for sub in command.get_subcommands() {
            let words = [words, &[sub.get_name().to_owned()]].concat();
            for_each(sub, &words, call);
        }
    }

    fn is_number(arg: &clap::Arg) -> bool {
        let kind = arg.get_value_parser().type_id();
        [
            TypeId::of::<i32>(),
            TypeId::of::<i64>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<f64>(),
        ]
        .iter()
        .any(|number| kind == *number)
    }

    #[test]
    fn every_number_is_rejected_with_a_rule() {
        let mut count = 0;
        for_each(&command(), &["usher".to_owned()], &mut |command, words| {
            for arg in command.get_arguments().filter(|arg| is_number(arg)) {
                let is_float = arg.get_value_parser().type_id() == TypeId::of::<f64>();
                let huge = if is_float {
                    "1e1e1"
                } else {
                    "99999999999999999999"
                };
                for value in ["x", "", huge] {
                    let word = match arg.get_long() {
                        Some(long) => format!("--{long}={value}"),
                        None => value.to_owned(),
                    };
                    let words = [words, &[word]].concat();
                    let args = words.iter().cloned().map(OsString::from);
                    let error = super::command().try_get_matches_from(args).unwrap_err();
                    let text = explain(&error, &[]);
                    let states_rule = [" must be ", "a value is required"]
                        .iter()
                        .any(|rule| text.contains(rule));
                    assert!(states_rule, "{words:?}: {text}");
                    count += 1;
                }
            }
        });
        assert!(count > 40, "{count}");
    }

    #[test]
    fn unknown_options_before_the_program_are_errors() {
        for name in ["run", "bg", "profile"] {
            let rejected = |words: &[&str]| {
                let begin = ["usher", name];
                let args = begin.iter().chain(words).map(OsString::from);
                let args: Vec<OsString> = args.collect();
                let error = command().try_get_matches_from(&args).unwrap_err();
                explain(&error, &args)
            };
            for words in [&["--bogus"][..], &["--bogus", "2", "--", "true"]] {
                let line = rejected(words);
                assert!(line.starts_with("unexpected argument '--bogus'"), "{line}");
            }
            for words in [&["--nmae", "x", "--", "true"][..], &["--nmae=x", "true"]] {
                let line = rejected(words);
                let tip = "unexpected argument '--nmae' found; a similar argument exists: '--name'";
                assert!(line.starts_with(tip), "{line}");
            }
            let line = rejected(&["-name", "x", "--", "true"]);
            let tip = "unknown option '-name'; a similar option exists: '--name'";
            assert!(line.starts_with(tip), "{line}");
            // A word of the program is not the unknown option.
            let line = rejected(&["--nmae", "x", "make", "-name"]);
            let tip = "unexpected argument '--nmae' found; a similar argument exists: '--name'";
            assert!(line.starts_with(tip), "{line}");
            let line = rejected(&["-Z", "make", "-name", "-Zname"]);
            assert!(line.starts_with("unexpected argument '-Z' found"), "{line}");
            // Options after the program's name belong to the program.
            for words in [&["make", "-j8", "--bogus"][..], &["--", "--bogus"]] {
                let begin = ["usher", name];
                let args = begin.iter().chain(words);
                let matches = command().try_get_matches_from(args).unwrap();
                let (_, matches) = matches.subcommand().unwrap();
                let given = matches.get_many::<OsString>("command").unwrap();
                assert!(given.eq(&words[usize::from(words[0] == "--")..]));
            }
        }
    }

    #[test]
    fn every_command_has_one_line_and_examples() {
        for sub in command().get_subcommands() {
            let name = sub.get_name();
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(
                !about.is_empty() && !about.contains('\n'),
                "{name}: {about:?}"
            );
            let after = sub
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                sub.is_hide_set() || after.contains(&format!("usher {name}")),
                "{name} shows no example"
            );
        }
    }

    #[test]
    fn help_of_a_nested_command_names_its_own_help() {
        let words = ["usher", "sched", "start", "--turn-ms", "0"].map(OsString::from);
        let error = Cli::try_parse_from(&words).unwrap_err();
        let actual = explain(&error, &words);
        assert!(
            actual.ends_with("see 'usher sched start --help'"),
            "{actual}"
        );
    }

    #[test]
    fn hidden_commands_are_neither_completed_nor_suggested() {
        let names = |command: &clap::Command| -> Vec<String> {
            let subs = command.get_subcommands();
            subs.map(|sub| sub.get_name().to_owned()).collect()
        };
        let visible = names(&visible_command());
        assert!(visible.contains(&"run".to_owned()) && !visible.contains(&"keeper".to_owned()));
        assert!(names(&command()).contains(&"keeper".to_owned()));
        let line = unknown_command(&["keepr".into()]);
        assert!(!line.contains("'keeper'"), "{line}");
    }

    #[test]
    fn reports_a_typing_error_in_one_line_with_a_tip() {
        assert_eq!(
            unknown_command(&["statsu".into()]),
            "unrecognized subcommand 'statsu'; a similar subcommand exists: 'status'; see 'usher \
             --help'"
        );
    }
}
