// SPDX-License-Identifier: GPL-2.0-only
//! `usher completions`: prints the completion script of a shell, which `clap_complete` generates
//! from the command line's definition, without hidden commands.

use clap_complete::Shell;

use crate::cli;
use crate::failure::Outcome;
use crate::output::Output;

/// Prints a shell's completion script
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  usher completions bash > ~/.local/share/bash-completion/completions/usher
  usher completions zsh > ~/.zfunc/_usher
  usher completions fish > ~/.config/fish/completions/usher.fish")]
pub struct Args {
    /// Shell whose completion script is printed
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args, out: Output) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut cli::visible_command(),
        "usher",
        &mut script,
    );
    out.text(&String::from_utf8_lossy(&script))?;
    Ok(0)
}
