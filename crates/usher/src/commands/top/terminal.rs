// SPDX-License-Identifier: GPL-2.0-only
//! The terminal of `usher top`: raw mode, the alternate screen, and drawing of changed cells.
//!
//! 1. [`Screen::enter`] saves the settings of the terminal, switches to raw mode and to the
//!    alternate screen, and hides the cursor.
//! 2. [`Screen::draw`] writes the cells that differ from the last picture.
//! 3. [`restore`] restores the terminal. It is called when the screen is dropped, also while a
//!    panic unwinds, and by the panic hook before the message is printed.
//!
//! After SIGKILL, the terminal remains as it was; `reset` restores it.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;

use anyhow::Context;
use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};
use rustix::termios::{self, OptionalActions, Termios};

/// Alternate screen, hidden cursor, no line wrap.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// A terminal without an alternate screen would keep the picture, and the next line of text would
/// begin inside of it. The picture is therefore erased.
const LEAVE: &str = "\x1b[m\x1b[2J\x1b[H\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Upper limit of the columns and of the rows that are drawn: a terminal may report up to 65,535, and
/// the memory of a picture is in proportion to their product.
const SIZE_MAX: u16 = 2000;
const CLEAR: &str = "\x1b[m\x1b[2J";

/// Settings of the terminal before [`Screen::enter`]; `None`: the terminal is not in raw mode.
static SAVED: Mutex<Option<SavedTerminal>> = Mutex::new(None);

struct SavedTerminal {
    /// Settings of standard input; `None` if standard input is no terminal.
    input: Option<Termios>,
}

/// The terminal in raw mode, on the alternate screen.
pub struct Screen {
    /// The last picture; `None` if the screen must be drawn as a whole.
    last: Option<Buffer>,
    color: bool,
}

impl Screen {
    /// Switches the terminal to raw mode and to the alternate screen.
    pub fn enter(color: bool) -> anyhow::Result<Self> {
        let stdin = io::stdin();
        let input = match stdin.is_terminal() {
            true => Some(termios::tcgetattr(&stdin).context("reading the terminal's settings")?),
            false => None,
        };
        if let Some(settings) = &input {
            let mut raw = settings.clone();
            raw.make_raw();
            // Output is processed, so that a line end of an error message returns to column 1.
            raw.output_modes = settings.output_modes;
            termios::tcsetattr(&stdin, OptionalActions::Now, &raw)
                .context("switching the terminal to raw mode")?;
        }
        if let Ok(mut saved) = SAVED.lock() {
            *saved = Some(SavedTerminal { input });
        }
        let screen = Self { last: None, color };
        write_out(ENTER)?;
        Ok(screen)
    }

    /// Draws a picture. Cells that have not changed are not written.
    pub fn draw(&mut self, picture: Buffer) -> anyhow::Result<()> {
        let mut text = String::new();
        let last = self.last.take().filter(|last| last.area == picture.area);
        let last = last.unwrap_or_else(|| {
            text.push_str(CLEAR);
            Buffer::empty(picture.area)
        });
        let mut at = None;
        let mut style = None;
        for (x, y, cell) in last.diff(&picture) {
            if at != Some((x, y)) {
                let _ = write!(text, "\x1b[{};{}H", y + 1, x + 1);
            }
            let own = sgr(cell, self.color);
            if style.as_ref() != Some(&own) {
                text.push_str(&own);
                style = Some(own);
            }
            text.push_str(cell.symbol());
            at = x
                .checked_add(1)
                .map(|x| (x, y))
                .filter(|_| cell.symbol().len() == 1);
        }
        write_out(&text)?;
        self.last = Some(picture);
        Ok(())
    }

    /// Lets the next picture be drawn as a whole.
    pub fn invalidate(&mut self) {
        self.last = None;
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, if it is in raw mode.
pub fn restore() {
    // A panic in another function does not invalidate the saved settings.
    let mut saved = SAVED
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(saved) = saved.take() {
        // Nothing can be done about an error: the terminal is gone.
        let _ = write_out(LEAVE);
        if let Some(settings) = &saved.input {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, settings);
        }
    }
}

/// Lets a panic restore the terminal before its message is printed.
pub fn restore_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        print(panic);
    }));
}

/// Returns the area of the terminal, at most [`SIZE_MAX`] columns and rows; 80 x 24 if it has no
/// size.
pub fn area() -> Rect {
    let size = termios::tcgetwinsize(io::stdout()).ok();
    let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    let (columns, rows) = size.map_or((80, 24), |size| (size.ws_col, size.ws_row));
    Rect::new(0, 0, columns.min(SIZE_MAX), rows.min(SIZE_MAX))
}

fn write_out(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .context("writing to the terminal")?;
    out.flush().context("writing to the terminal")
}

/// Returns the control sequence of a cell's style. Without colour, a cell may be bold or reversed.
fn sgr(cell: &Cell, color: bool) -> String {
    let mut codes = String::from("\x1b[0");
    for (modifier, code) in [
        (Modifier::BOLD, ";1"),
        (Modifier::DIM, ";2"),
        (Modifier::REVERSED, ";7"),
    ] {
        if cell.modifier.contains(modifier) {
            codes.push_str(code);
        }
    }
    let foreground = match cell.fg {
        _ if !color => None,
        Color::Red => Some(31),
        Color::Green => Some(32),
        Color::Yellow => Some(33),
        Color::Blue => Some(34),
        Color::Magenta => Some(35),
        Color::Cyan => Some(36),
        _ => None,
    };
    if let Some(code) = foreground {
        let _ = write!(codes, ";{code}");
    }
    codes.push('m');
    codes
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    /// Environment variable that is set only in the child of the test.
    const CHILD: &str = "USHER_TEST_PANICKING_CHILD";

    #[test]
    fn a_panic_restores_the_terminal_before_its_message() {
        if std::env::var_os(CHILD).is_some() {
            restore_on_panic();
            let _screen = Screen::enter(false).unwrap();
            panic!("the child panics");
        }
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap();
        let path = path.to_str().unwrap();
        let slave = File::options().read(true).write(true).open(path).unwrap();
        let before = termios::tcgetattr(&slave).unwrap();
        let end = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
        let (_, module) = module_path!().split_once("::").unwrap();
        let test = format!("{module}::a_panic_restores_the_terminal_before_its_message");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--nocapture"])
            .env(CHILD, "1")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let mut shown = Vec::new();
        let pause = Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        loop {
            let ended = child.try_wait().unwrap();
            while poll(&mut [PollFd::new(&master, PollFlags::IN)], Some(&pause)).unwrap() > 0 {
                let mut bytes = [0; 4096];
                let count = rustix::io::read(&master, &mut bytes).unwrap();
                shown.extend(&bytes[..count]);
            }
            if let Some(status) = ended {
                assert!(!status.success());
                break;
            }
        }
        let shown = String::from_utf8_lossy(&shown);
        let at = |text: &str| {
            shown
                .find(text)
                .unwrap_or_else(|| panic!("no {text:?}: {shown}"))
        };
        assert!(
            at(ENTER) < at(LEAVE) && at(LEAVE) < at("the child panics"),
            "{shown}"
        );
        let after = termios::tcgetattr(&slave).unwrap();
        assert_eq!(before.local_modes, after.local_modes);
        assert_eq!(before.input_modes, after.input_modes);
    }
}
