// SPDX-License-Identifier: GPL-2.0-only
//! How far a long command is: a bar on a terminal, else a line now and then.
//! All on standard error, so that standard output holds the answer alone.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::shown;

/// A long command's progress.
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Nothing done yet, and nobody knows how much there is to do.
    pub fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner().with_style(style("{spinner} {msg}"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar }
    }

    /// So many steps are to be done from here on.
    pub fn steps(&self, count: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(count);
            bar.set_position(0);
            bar.set_style(style(
                "{spinner} {bar:24.green/dim} {pos}/{len}  {msg} {eta:.dim}",
            ));
        }
    }

    /// A step is done.
    pub fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// What is being done: beside the bar, and nowhere else.
    pub fn doing(&self, text: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(shown(&text));
        }
    }

    /// Something worth a line that stays.
    pub fn say(&self, line: &str) {
        let line = line.lines().map(shown).collect::<Vec<_>>().join("\n");
        match &self.bar {
            Some(bar) => bar.println(line),
            // A measurement goes on where standard error is closed.
            None => drop(writeln!(std::io::stderr(), "{line}")),
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are ours; were one wrong, the default would do.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
