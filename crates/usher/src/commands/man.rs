// SPDX-License-Identifier: GPL-2.0-only
//! `usher man`: the manual pages, made from the same text as `--help`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::cli;
use crate::failure::Outcome;
use crate::output::Output;

/// Writes the manual pages into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher man /usr/local/share/man/man1      usher(1), usher-run(1), …
  usher man /tmp/man && man /tmp/man/usher-mix.1")]
pub struct Args {
    /// Where to; made if it is not there
    dir: PathBuf,
}

/// Writes one page a command, also of those below another.
pub fn run(args: &Args, out: Output) -> Outcome {
    fs::create_dir_all(&args.dir)
        .with_context(|| format!("making the directory '{}'", args.dir.display()))?;
    let mut root = cli::command().disable_help_subcommand(true);
    root.build();
    let mut written = Vec::new();
    pages(&root, "usher", &args.dir, &mut written)?;
    out.answer(&written, || {
        let lines: Vec<String> = written.iter().map(|p| p.display().to_string()).collect();
        lines.join("\n")
    })?;
    Ok(0)
}

/// A command's page, and those of the commands below it.
fn pages(
    command: &clap::Command,
    name: &str,
    dir: &Path,
    written: &mut Vec<PathBuf>,
) -> anyhow::Result<()> {
    let named = command.clone().display_name(name.to_owned());
    written.push(page(&named, name, dir)?);
    let shown = |sub: &&clap::Command| !sub.is_hide_set() && sub.get_name() != "help";
    command
        .get_subcommands()
        .filter(shown)
        .try_for_each(|sub| pages(sub, &format!("{name}-{}", sub.get_name()), dir, written))
}

fn page(command: &clap::Command, name: &str, dir: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join(format!("{name}.1"));
    let mut text = Vec::new();
    let write = clap_mangen::Man::new(command.clone())
        .title(name.to_uppercase())
        .render(&mut text)
        .and_then(|()| fs::write(&path, &text));
    write.with_context(|| format!("writing the manual page '{}'", path.display()))?;
    Ok(path)
}
