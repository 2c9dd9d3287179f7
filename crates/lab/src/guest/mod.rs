// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first program of a guest: sets the machine up as a command expects to
//! find one, runs it, and tells the host how it ended.
//!
//! It is the same program that started the emulator, run by the guest's kernel
//! from the host's files; so there is nothing to build into an image and
//! nothing that could be older than the other side.

mod files;
mod machine;
mod pump;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::system::RebootCommand;

use crate::job::{CONTROL, ERR, Job, OUT, Report};

/// The word on the kernel's command line by which the program knows that it
/// is the first one of a guest.
pub(crate) const WORD: &str = "usher-lab-guest";
/// How long the kernel may take to find its ports, and between two looks.
const PORTS_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A job that cannot be done: with which status, and why.
#[derive(Debug)]
struct Refusal(u8, String);

impl Refusal {
    fn because(doing: impl std::fmt::Display, why: impl Into<std::io::Error>) -> Self {
        Self(
            crate::OWN_FAILURE,
            format!("{doing}: {}", said(&why.into())),
        )
    }
}

/// What the system said, without Rust's " (os error 13)".
fn said(why: &std::io::Error) -> String {
    let text = why.to_string();
    text.split(" (os error ").next().unwrap_or(&text).to_owned()
}

/// Where the host listens.
struct Ports {
    out: File,
    err: File,
    control: File,
}

/// Whether this process is the first program of a guest.
pub(crate) fn is_first() -> bool {
    std::process::id() == 1
        && std::env::args_os()
            .next_back()
            .is_some_and(|word| word == WORD)
}

/// The life of the guest.
pub(crate) fn live() -> ! {
    let ports = machine::mount_first().and_then(|()| ports());
    match ports {
        Ok(ports) => serve(ports),
        // The console is all there is to complain to.
        Err(Refusal(_, reason)) => eprintln!("lab: guest: {reason}"),
    }
    rustix::fs::sync();
    let _ = rustix::system::reboot(RebootCommand::PowerOff);
    // The first program must not end.
    loop {
        std::thread::park();
    }
}

fn serve(mut ports: Ports) {
    let report = match work(&mut ports) {
        Ok(status) => Report::Ended { status },
        Err(Refusal(status, reason)) => Report::Refused { status, reason },
    };
    // Whatever the command wrote is with the host before it hears of its end.
    rustix::fs::sync();
    tell(&mut ports.control, &report);
}

fn work(ports: &mut Ports) -> Result<u8, Refusal> {
    let mut line = String::new();
    let reading = "reading what to do";
    let mut control = BufReader::new(&ports.control);
    control
        .read_line(&mut line)
        .map_err(|why| Refusal::because(reading, why))?;
    let job: Job = serde_json::from_str(&line).map_err(|why| Refusal::because(reading, why))?;
    files::arrange(&job)?;
    machine::arrange(&job)?;
    let release = machine::release();
    tell(&mut ports.control, &Report::Ready { release });
    pump::run(&job, &mut ports.out, &mut ports.err)
}

fn tell(control: &mut File, report: &Report) {
    if let Ok(line) = serde_json::to_string(report)
        && let Err(why) = control.write_all(format!("{line}\n").as_bytes())
    {
        eprintln!("lab: guest: telling the host {line}: {why}");
    }
}

fn ports() -> Result<Ports, Refusal> {
    let open = |name: &str| {
        let path = port(name)?;
        let file = File::options().read(true).write(true).open(&path);
        file.map_err(|why| Refusal::because(format!("opening {}", path.display()), why))
    };
    Ok(Ports {
        out: open(OUT)?,
        err: open(ERR)?,
        control: open(CONTROL)?,
    })
}

/// The device of a port, once the kernel has found it.
fn port(name: &str) -> Result<PathBuf, Refusal> {
    let begun = Instant::now();
    loop {
        let ports = std::fs::read_dir("/sys/class/virtio-ports")
            .into_iter()
            .flatten()
            .flatten();
        let mut ports = ports.map(|port| port.path());
        let is_it = |port: &PathBuf| {
            let named = std::fs::read_to_string(port.join("name"));
            named.is_ok_and(|named| named.trim() == name)
        };
        let found = ports
            .find(is_it)
            .and_then(|port| Some(PathBuf::from("/dev").join(port.file_name()?)));
        match found.filter(|device| device.exists()) {
            Some(device) => return Ok(device),
            None if begun.elapsed() < PORTS_WITHIN => std::thread::sleep(LOOK_EVERY),
            None => {
                return Err(Refusal(
                    crate::OWN_FAILURE,
                    format!("there is no port {name}"),
                ));
            }
        }
    }
}
