// SPDX-License-Identifier: GPL-2.0-only
//! Progress of a long command, on standard error, so that standard output contains only the result.
//! On a terminal, progress is a bar with the present activity, drawn at least every 120 ms;
//! elsewhere, only permanent lines are printed. Errors of writing are ignored.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{shown, write_line};

/// The progress of a long command.
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Creates the display, without completed steps and with an unknown number of steps.
    pub fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner().with_style(style("{spinner} {msg}"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { bar }
    }

    /// Sets the number of steps from here on.
    pub fn steps(&self, count: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(count);
            bar.set_position(0);
            bar.set_style(style(
                "{spinner} {bar:24.green/dim} {pos}/{len}  {msg} {eta:.dim}",
            ));
        }
    }

    /// Counts a completed step.
    pub fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Shows the present activity beside the bar, and nowhere else.
    pub fn doing(&self, text: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(shown(&text));
        }
    }

    /// Prints a line that stays on the screen, unlike the bar.
    pub fn print_line(&self, line: &str) {
        let line = line.lines().map(shown).collect::<Vec<_>>().join("\n");
        match &self.bar {
            Some(bar) => bar.println(line),
            // A measurement continues even if standard error is closed.
            None => drop(write_line(&mut std::io::stderr(), &line)),
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constant; an invalid one would be replaced by the default.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
