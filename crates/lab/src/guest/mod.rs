// SPDX-License-Identifier: MIT OR Apache-2.0
//! The init program of a guest.
//!
//! 1. Mount `/proc`, `/sys` and `/dev`, and open the ports to the host.
//! 2. Read the job from the host.
//! 3. Mount the host's files (`files`), set up the machine (`machine`), and report to the host that
//!    the guest is ready.
//! 4. Run the command and forward its output (`pump`).
//! 5. Report the command's exit status. If a step fails, report the reason instead (`refusal`).
//!    Then power off.
//!
//! Step 1 waits up to 60 s for each of the three ports, with a check every 10 ms; without ports,
//! the reason is written to the console. The other steps have no time limit in the guest, because
//! the host limits the time of the guest.
//!
//! The guest's kernel starts the program that has started the emulator, from the host's files. No
//! image of a root file system is needed, and host and guest always run the same version of the
//! program.

mod files;
mod machine;
mod pump;
mod refusal;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::system::RebootCommand;

use self::refusal::Refusal;
use crate::job::{CONTROL, ERR, GuestJob, OUT, Report};

/// A word on the kernel's command line by which the program recognises that it is the init process
/// of a guest.
pub(crate) const WORD: &str = "usher-lab-guest";
/// Time limit until the kernel has found the ports. The next constant is the interval of checks.
const PORTS_WITHIN: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The ports to the host.
struct GuestPorts {
    out: File,
    err: File,
    control: File,
}

/// Returns whether this process is the init process of a guest.
pub(crate) fn is_first() -> bool {
    std::process::id() == 1
        && std::env::args_os()
            .next_back()
            .is_some_and(|word| word == WORD)
}

/// Runs the init program, which never returns.
pub(crate) fn run_init() -> ! {
    let ports = machine::mount_first().and_then(|()| ports());
    match ports {
        Ok(ports) => serve(ports),
        // Without ports, a message can only be written to the console.
        Err(Refusal(_, reason)) => eprintln!("lab, in the guest: {reason}"),
    }
    rustix::fs::sync();
    let _ = rustix::system::reboot(RebootCommand::PowerOff);
    // The kernel would panic if the init process ended.
    loop {
        std::thread::park();
    }
}

fn serve(mut ports: GuestPorts) {
    let report = match work(&mut ports) {
        Ok(status) => Report::Ended { status },
        Err(Refusal(status, reason)) => Report::Refused { status, reason },
    };
    // File systems are flushed before the report, because the host kills the emulator after it.
    rustix::fs::sync();
    send_report(&mut ports.control, &report);
}

fn work(ports: &mut GuestPorts) -> Result<u8, Refusal> {
    let mut line = String::new();
    let reading = "reading the command from the host";
    let mut control = BufReader::new(&ports.control);
    control
        .read_line(&mut line)
        .map_err(|why| Refusal::because(reading, why))?;
    let job: GuestJob =
        serde_json::from_str(&line).map_err(|why| Refusal::because(reading, why))?;
    files::arrange(&job)?;
    machine::arrange(&job)?;
    let release = machine::release();
    send_report(&mut ports.control, &Report::Ready { release });
    pump::run(&job, &mut ports.out, &mut ports.err)
}

fn send_report(control: &mut File, report: &Report) {
    if let Ok(line) = serde_json::to_string(report)
        && let Err(why) = control.write_all(format!("{line}\n").as_bytes())
    {
        eprintln!("lab, in the guest: sending the message {line} to the host: {why}");
    }
}

fn ports() -> Result<GuestPorts, Refusal> {
    let open = |name: &str| {
        let path = port(name)?;
        let file = File::options().read(true).write(true).open(&path);
        file.map_err(|why| Refusal::because(format!("opening {}", path.display()), why))
    };
    Ok(GuestPorts {
        out: open(OUT)?,
        err: open(ERR)?,
        control: open(CONTROL)?,
    })
}

/// Waits until the kernel has found a port, and returns the path of its device.
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
            None if begun.elapsed() < PORTS_WITHIN => std::thread::sleep(POLL_INTERVAL),
            None => {
                return Err(Refusal(
                    crate::OWN_FAILURE,
                    format!("the guest has no virtio port {name}"),
                ));
            }
        }
    }
}
