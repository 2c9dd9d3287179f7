// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs with a known use of the machine, for the tests and the example `meter_cost`. The first
//! argument selects the program.
//!
//! Each program prints `ready` and waits for a line on its standard input. The program then does
//! its work, prints one line with the amount that it has used, and waits until its input is closed.

mod disk;
mod held;
mod net;
mod work;

use std::io::{BufRead, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rig {args:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[&str]) -> std::io::Result<()> {
    match args {
        ["burn", ms] => work::burn_on_signal(number(ms)),
        ["storm", count] => work::storm(number(count)),
        ["daemon", ms] => work::daemonise(number(ms)),
        ["threads", count] => work::threads(number(count)),
        ["direct", file, count, block] => disk::direct(file, number(count), number(block)),
        ["buffered", file, bytes] => disk::buffered(file, number(bytes)),
        ["send", count, bytes] => net::send(number(count), number(bytes)),
        ["datagrams", count] => net::datagrams(number(count)),
        ["flock", file] => held::hold_lock(file),
        _ => Err(std::io::Error::other("the test rig has no such program")),
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or(0)
}

/// Prints `ready`, and waits for the line that starts the work.
fn ready() -> std::io::Result<()> {
    report("ready")?;
    wait()
}

fn report(what: &str) -> std::io::Result<()> {
    println!("{what}");
    std::io::stdout().flush()
}

/// Waits for a line on standard input, or for its end.
fn wait() -> std::io::Result<()> {
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}
