// SPDX-License-Identifier: GPL-2.0-only
//! Tests of `usher top` on a pseudoterminal: the screen at several sizes, keys, signals, colour, and
//! the state of the terminal after the end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use common::{DEADLINE, World, signal, stdout, terminal, wait_for};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// `usher top` on a pseudoterminal.
struct Top {
    child: Child,
    master: File,
    /// Keeps the terminal's settings after the end of the child.
    slave: File,
    screen: vt100::Parser,
    bytes: Vec<u8>,
    /// The text of the screen before it was erased for the last time.
    erased: String,
}

impl Top {
    fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let (master, slave) = terminal();
        resize(&slave, columns, rows);
        let end = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
        let child = command.env("TERM", "xterm-256color");
        let child = child.stdin(end()).stdout(end()).stderr(end()).spawn();
        Self {
            child: child.unwrap(),
            master,
            slave,
            screen: parser(columns, rows),
            bytes: Vec::new(),
            erased: String::new(),
        }
    }

    /// Reads until the text of the screen fulfils the condition. Returns the text.
    fn until(&mut self, what: &str, found: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let text = self.screen.screen().contents();
            if found(&text) {
                return text;
            }
            assert!(begun.elapsed() < DEADLINE, "{what} is missing:\n{text}");
            self.read();
        }
    }

    /// Reads what the terminal has received; waits at most 10 ms. Returns whether it received
    /// something.
    fn read(&mut self) -> bool {
        let mut polled = [PollFd::new(&self.master, PollFlags::IN)];
        let limit = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        if poll(&mut polled, Some(&limit)).unwrap_or(0) == 0 {
            return false;
        }
        let mut bytes = [0; 4096];
        let count = rustix::io::read(&self.master, &mut bytes).unwrap();
        for &byte in &bytes[..count] {
            if byte == b'J' && self.bytes.ends_with(b"\x1b[2") {
                self.erased = self.screen.screen().contents();
            }
            self.screen.process(&[byte]);
            self.bytes.push(byte);
        }
        true
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        resize(&self.slave, columns, rows);
        self.screen
            .screen_mut()
            .set_size(rows.try_into().unwrap(), columns.try_into().unwrap());
        signal(self.child.id() as i32, libc::SIGWINCH);
    }

    /// Waits for the end, and checks that the terminal is as before. Returns the exit status.
    fn end(mut self) -> Option<i32> {
        self.wait_for_end()
    }

    fn wait_for_end(&mut self) -> Option<i32> {
        let begun = Instant::now();
        let status = loop {
            assert!(begun.elapsed() < DEADLINE, "usher top has not ended");
            self.read();
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
        };
        while self.read() {}
        let screen = self.screen.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor());
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
        status.code()
    }
}

fn parser(columns: u16, rows: u16) -> vt100::Parser {
    vt100::Parser::new(rows.try_into().unwrap(), columns.try_into().unwrap(), 0)
}

fn resize(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize {
        ws_col: columns,
        ws_row: rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).unwrap();
}

/// A daemon with two sleeping programs.
struct Managed {
    world: World,
    launchers: Vec<Child>,
}

impl Managed {
    fn new() -> Self {
        let mut world = World::new();
        world.daemon(&[]);
        let launchers = Vec::new();
        let mut managed = Self { world, launchers };
        managed.launch("alpha");
        managed.launch("beta");
        managed.world.programs(2);
        managed
    }

    fn launch(&mut self, name: &str) {
        let command = ["run", "--name", name, "--", "sleep", "1000"];
        let launcher = self.world.usher(&command).spawn().unwrap();
        self.launchers.push(launcher);
    }

    fn top(&self, columns: u16, rows: u16) -> Top {
        let command = self.world.usher(&["top", "--interval", "0.05"]);
        Top::start(command, columns, rows)
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        for launcher in &mut self.launchers {
            signal(launcher.id() as i32, libc::SIGTERM);
            let _ = launcher.wait();
        }
    }
}

fn shows_both(text: &str) -> bool {
    text.contains("alpha") && text.contains("beta") && text.contains("q quit")
}

#[test]
fn the_view_fits_terminals_of_60_to_300_columns() {
    let managed = Managed::new();
    let mut top = managed.top(60, 20);
    let text = top.until("the table", shows_both);
    assert!(text.contains("SEATS") && text.contains("CPUs ["), "{text}");
    assert!(!text.contains("COMMAND"), "{text}");
    top.resize(300, 20);
    top.until("the command", |text| text.contains("sleep 1000"));
    top.resize(200, 24);
    top.until("the wide table", |text| {
        shows_both(text) && text.contains("USER") && text.contains("HISTORY")
    });
    top.resize(60, 10);
    let text = top.until("the narrow table", |text| {
        shows_both(text) && !text.contains("COMMAND")
    });
    assert_eq!(text.matches("q quit").count(), 1, "{text}");
    top.press("q");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn keys_sort_filter_and_show_help() {
    let managed = Managed::new();
    let mut top = managed.top(100, 24);
    top.until("the table", shows_both);
    top.press("?");
    top.until("the help", |text| text.contains("reverse the order"));
    top.press("x/alp");
    top.until("the filtered table", |text| {
        text.contains("filter: alp_") && text.matches("sleep 1000").count() == 1
    });
    top.press("\x1b");
    top.until("the whole table", |text| {
        text.matches("sleep 1000").count() == 2
    });
    top.press("sr");
    let text = top.until("the order", |text| {
        text.contains("sort: PROGRAM (reversed)")
    });
    let at = |name: &str| text.find(&format!(" {name} ")).unwrap();
    assert!(at("beta") < at("alpha"), "{text}");
    top.press("\x03");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn signals_and_the_end_of_the_daemon_restore_the_terminal() {
    let mut managed = Managed::new();
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        let mut top = managed.top(80, 24);
        top.until("the table", shows_both);
        signal(top.child.id() as i32, number);
        assert_eq!(top.end(), Some(0), "signal {number}");
    }
    let mut top = managed.top(80, 24);
    top.until("the table", shows_both);
    let pid = managed.world.status()["pid"].as_i64().unwrap() as i32;
    assert_eq!(managed.world.end(pid), Some(0));
    assert_eq!(top.wait_for_end(), Some(125));
    let last = &top.erased;
    let waits = "the daemon has ended; waiting for another daemon";
    assert!(last.contains(waits) && shows_both(last), "{last}");
    // A terminal without an alternate screen also shows the error on a line of its own.
    let bytes = String::from_utf8_lossy(&top.bytes).into_owned();
    let mut plain = parser(80, 24);
    plain.process(bytes.replace("\x1b[?1049", "\x1b[?9999").as_bytes());
    let error = "usher: the daemon has ended, and no other daemon started within 3 s";
    for text in [plain.screen().contents(), top.screen.screen().contents()] {
        assert!(text.trim_start().starts_with(error), "{text}");
        assert!(!text.contains("q quit"), "{text}");
    }
}

#[test]
fn the_view_continues_with_the_daemon_that_the_keeper_starts() {
    let mut managed = Managed::new();
    let mut top = managed.top(80, 24);
    top.until("the table", shows_both);
    let killed = managed.world.status()["pid"].as_i64().unwrap() as i32;
    signal(killed, libc::SIGKILL);
    managed.world.reap(killed);
    managed.world.programs(2);
    managed.launch("gamma");
    top.until("the next daemon's programs", |text| {
        shows_both(text) && text.contains("gamma")
    });
    top.press("q");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn a_stop_gives_the_terminal_back_until_the_program_continues() {
    let managed = Managed::new();
    let mut top = managed.top(80, 24);
    top.until("the table", shows_both);
    let pid = top.child.id();
    top.press("\x1a");
    wait_for("the stop", || {
        top.read();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let is_stopped = stat.rsplit_once(") ")?.1.starts_with('T');
        (is_stopped && !top.screen.screen().alternate_screen()).then_some(())
    });
    signal(pid as i32, libc::SIGCONT);
    top.until("the table", shows_both);
    top.press("q");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn colours_are_left_out_on_request() {
    let managed = Managed::new();
    for (no_color, has_colour) in [("", true), ("1", false)] {
        let mut command = managed.world.usher(&["top"]);
        command.env("NO_COLOR", no_color);
        let mut top = Top::start(command, 120, 24);
        top.until("the table", shows_both);
        let bytes = String::from_utf8_lossy(&top.bytes).into_owned();
        assert_eq!(bytes.contains(";36m"), has_colour, "{bytes:?}");
        top.press("q");
        assert_eq!(top.end(), Some(0));
    }
}

#[test]
fn pipes_and_json_get_the_state_once() {
    let managed = Managed::new();
    let text = stdout(&managed.world.run(&["top"]));
    assert!(
        text.contains("COMMAND") && text.contains("sleep 1000"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "{text:?}");
    let answer = managed.world.json(&["top"]).unwrap();
    assert_eq!(answer["programs"].as_array().unwrap().len(), 2);
    let mut command = managed.world.usher(&["top"]);
    command.env("TERM", "dumb");
    let output = command.output().unwrap();
    assert!(output.status.success());
}
