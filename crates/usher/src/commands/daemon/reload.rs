// SPDX-License-Identifier: GPL-2.0-only
//! `usher daemon reload`: requests that the daemon reads its configuration file again, and prints
//! the result. Requires a daemon; one call with the time limit of `client`.

use crate::cli::options::Global;
use crate::client::Daemon;
use crate::failure::Outcome;
use crate::output::{Output, shown};

/// Makes the daemon read its configuration file again
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The daemon reads /etc/usher/usher.toml (root's daemon) or ~/.config/usher/usher.toml, or the file
of its option --config. New rules apply to programs that arrive later; running processes are
compared with the rules that have attach = true. A change of the table [scheduler] starts, changes
or stops the sched_ext scheduler. If the file has an error, the old rules stay in force. The
settings in [daemon] take effect at the next start of the daemon. SIGHUP has the same effect. Only
root and the user of the daemon may request this.

Exit status: 0 if the new rules are in force; 125 if the file has an error, which one line
on standard error names.

Examples:
  usher daemon reload
  sudo usher daemon reload --runtime-dir /run/usher")]
pub struct Args {}

/// Makes the request.
pub fn run(_: &Args, global: &Global, out: Output) -> Outcome {
    let reloaded = Daemon::need(global.runtime_dir.as_deref())?.reload()?;
    out.answer(&reloaded, || {
        let mut text = match &reloaded.file {
            Some(file) => format!("rules in force: {}, from {}\n", reloaded.rules, shown(file)),
            None => "no rules in force, because there is no configuration file\n".to_owned(),
        };
        for note in &reloaded.notes {
            text.push_str(&format!("{}\n", shown(note)));
        }
        text
    })?;
    Ok(0)
}
