// SPDX-License-Identifier: GPL-2.0-only
//! `usher man`: writes one manual page per command, nested commands included, generated from the
//! text of `--help`.
//!
//! `clap_mangen` formats options. The synopsis, the paragraphs below the options and the examples
//! are formatted here, because `clap_mangen` omits the values of options in the synopsis and
//! rewraps the lines of examples.
//!
//! Existing pages are overwritten. The first page that cannot be written ends the command with an
//! error; pages that were written before stay. Hidden commands have no page.

mod sections;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use crate::answers::WrittenPages;
use crate::cli;
use crate::failure::Outcome;
use crate::output::Output;

/// The heading of the examples in a text of `--help`.
const EXAMPLES: &str = "Examples:\n";

/// Writes the manual pages into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher man /usr/local/share/man/man1      usher(1), usher-run(1), …
  usher man /tmp/man && man /tmp/man/usher-mix.1")]
pub struct Args {
    /// Directory for the manual pages; created if missing
    dir: PathBuf,
}

/// Writes one page per command, including nested commands.
pub fn run(args: &Args, out: Output) -> Outcome {
    fs::create_dir_all(&args.dir)
        .with_context(|| format!("making the directory '{}'", args.dir.display()))?;
    let mut root = cli::command().disable_help_subcommand(true);
    root.build();
    let mut written = Vec::new();
    pages(&root, "usher", &args.dir, &mut written)?;
    let answer = WrittenPages { written };
    out.answer(&answer, || {
        let lines: Vec<String> = answer
            .written
            .iter()
            .map(|p| p.display().to_string())
            .collect();
        lines.join("\n")
    })?;
    Ok(0)
}

/// Writes the page of a command, and the pages of its subcommands.
fn pages(
    command: &clap::Command,
    name: &str,
    dir: &Path,
    written: &mut Vec<PathBuf>,
) -> anyhow::Result<()> {
    let named = command.clone().display_name(name.to_owned());
    let path = dir.join(format!("{name}.1"));
    let write = page(&named, name).and_then(|text| fs::write(&path, text));
    write.with_context(|| format!("writing the manual page '{}'", path.display()))?;
    written.push(path);
    subcommands(command)
        .try_for_each(|sub| pages(sub, &format!("{name}-{}", sub.get_name()), dir, written))
}

/// Returns the commands that have a page.
fn subcommands(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    let shown = |sub: &&clap::Command| !sub.is_hide_set() && sub.get_name() != "help";
    command.get_subcommands().filter(shown)
}

/// Makes one page. `clap_mangen`'s own page omits the values of options in the synopsis, and
/// rewraps the lines of examples.
fn page(command: &clap::Command, name: &str) -> io::Result<Vec<u8>> {
    let man = clap_mangen::Man::new(command.clone())
        .title(name.to_uppercase())
        .source(concat!("usher ", env!("CARGO_PKG_VERSION")))
        .manual("Usher");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    synopsis(command).to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if subcommands(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    let spaced = name.replace('-', " ");
    let text = text_below(command);
    if !text.contains("Exit status: ") {
        sections::exit_status(&spaced).to_writer(&mut page)?;
    }
    sections::environment(command, &spaced).to_writer(&mut page)?;
    sections::files(command, &spaced).to_writer(&mut page)?;
    if !text.is_empty() {
        after_help(&text).to_writer(&mut page)?;
    }
    if !text.contains(EXAMPLES) {
        sections::examples(&spaced, &all_examples()).to_writer(&mut page)?;
    }
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}

/// Returns the text below the options: that of `-h`, or that of `--help` if `-h` has none. The list
/// "Start here" of `usher --help` becomes the examples of its page.
fn text_below(command: &clap::Command) -> String {
    let text = command.get_after_help().or(command.get_after_long_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.replace("Start here:\n", EXAMPLES)
}

/// The example lines of all commands.
fn all_examples() -> Vec<String> {
    fn collect(command: &clap::Command, lines: &mut Vec<String>) {
        let text = text_below(command);
        if let Some((_, examples)) = text.split_once(EXAMPLES) {
            lines.extend(examples.lines().map(|line| line.trim_start().to_owned()));
        }
        subcommands(command).for_each(|sub| collect(sub, lines));
    }
    let mut lines = Vec::new();
    collect(&cli::command(), &mut lines);
    lines
}

fn synopsis(command: &clap::Command) -> Roff {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut line = vec![bold(name)];
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    let options = shown().filter(|arg| !arg.is_positional());
    for arg in options.chain(command.get_positionals()) {
        line.push(roman(if arg.is_required_set() { " " } else { " [" }));
        line.extend(usage(arg));
        line.push(roman(if arg.is_required_set() { "" } else { "]" }));
    }
    if subcommands(command).next().is_some() {
        line.extend([roman(" "), italic("COMMAND")]);
    }
    let mut section = Roff::new();
    section.control("SH", ["SYNOPSIS"]).text(line);
    section
}

/// Formats an argument as it is typed.
fn usage(arg: &clap::Arg) -> Vec<Inline> {
    let mut typed = Vec::new();
    match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => typed.push(bold(format!("--{long}"))),
        (None, Some(short)) => typed.push(bold(format!("-{short}"))),
        (None, None) if arg.is_last_set() => typed.push(bold("--")),
        (None, None) => {}
    }
    let takes = arg.get_num_args().unwrap_or_default();
    if !takes.takes_values() {
        return typed;
    }
    let names = arg.get_value_names().unwrap_or_default();
    let more = if takes.max_values() > names.len() {
        "..."
    } else {
        ""
    };
    let value = italic(format!("{}{more}", names.join(" ")));
    let joint = match (typed.is_empty(), arg.is_require_equals_set()) {
        (true, _) => "",
        (false, true) => "=",
        (false, false) => " ",
    };
    match takes.min_values() == 0 && !arg.is_positional() {
        true => typed.extend([roman(format!("[{joint}")), value, roman("]")]),
        false => typed.extend([roman(joint), value]),
    }
    typed
}

/// Converts the text below the options in `--help` to sections. Paragraphs with a heading ("Exit
/// status: …") come first, then notes without a heading, then literal lines below a line with a
/// heading ("Examples:").
fn after_help(text: &str) -> Roff {
    let (mut named, mut notes, mut kept) = (Roff::new(), Roff::new(), Roff::new());
    for block in text.split("\n\n") {
        let first = block.lines().next().unwrap_or_default();
        if let (Some(heading), Some((_, lines))) = (first.strip_suffix(':'), block.split_once('\n'))
        {
            heading_to(&mut kept, heading);
            kept.control("nf", []);
            for line in lines.lines() {
                kept.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
            kept.control("fi", []);
        } else if let Some((heading, rest)) = heading_of(block) {
            heading_to(&mut named, heading);
            paragraph_to(&mut named, rest);
        } else {
            match notes == Roff::new() {
                true => heading_to(&mut notes, "notes"),
                false => _ = notes.control("PP", []),
            }
            paragraph_to(&mut notes, block);
        }
    }
    Roff::from_iter([named, notes, kept])
}

/// Returns the heading of a paragraph: at most two words. A longer prefix belongs to the text.
fn heading_of(block: &str) -> Option<(&str, &str)> {
    let (heading, rest) = block.split_once(": ")?;
    let is_name = !heading.contains('\n') && heading.split(' ').count() <= 2;
    is_name.then_some((heading, rest))
}

fn heading_to(roff: &mut Roff, heading: &str) {
    roff.control("SH", [heading.to_uppercase().as_str()]);
}

fn paragraph_to(roff: &mut Roff, text: &str) {
    for line in text.lines() {
        roff.text([roman(line)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_come_last_and_unchanged() {
        let text = "Waits.\n\nExit status: 0,\nor 1.\n\nFor each thread: a line.\n\n\
                    Examples:\n  usher x       first\n  usher x 'y'";
        let sections = after_help(text).to_roff();
        let expected = ".SH \"EXIT STATUS\"\n0,\nor 1.\n\
                        .SH NOTES\nWaits.\n.PP\nFor each thread: a line.\n\
                        .SH EXAMPLES\n.nf\nusher x       first\nusher x 'y'\n.fi\n";
        assert_eq!(sections, expected);
        assert_eq!(after_help("Waits.").to_roff(), ".SH NOTES\nWaits.\n");
    }

    #[test]
    fn options_are_shown_with_their_values() {
        let mut command = clap::Command::new("x").args([
            clap::Arg::new("dir").long("dir").value_name("DIR"),
            clap::Arg::new("all").long("all").num_args(0),
            clap::Arg::new("pace")
                .long("pace")
                .value_name("FAST|SLOW")
                .num_args(0..=1)
                .require_equals(true),
            clap::Arg::new("pid")
                .value_name("PID")
                .num_args(1..)
                .required(true),
        ]);
        command = command.disable_help_flag(true);
        command.build();
        let line = synopsis(&command).to_roff();
        let plain = line.replace("\\fB", "").replace("\\fI", "");
        let plain = plain.replace("\\fR", "").replace("\\-", "-");
        let shown = ".SH SYNOPSIS\nx [--dir DIR] [--all] [--pace[=FAST|SLOW]] PID...\n";
        assert_eq!(plain, shown);
    }
}
