// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets up two network namespaces, which a rate-limited pair of virtual Ethernet devices connects.
//! Commands send from the local namespace; in the remote namespace run a server that discards data,
//! iperf3 and sshd. The rate limit in Mbit/s is a token bucket filter of `tc`. Five iperf3 servers
//! run: one for the foreground and four for background programs.
//!
//! Each server must listen on its port within 10 s; otherwise an error is returned. Dropping
//! [`Network`] ends the servers; its keeper deletes the namespaces, also if the benchmark is
//! killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::keeper::{Keeper, must, script};
use crate::processes::wait_for;

/// Ports of the servers in the remote namespace.
pub const SINK_PORT: u16 = 5001;
const SSH_PORT: u16 = 2222;
const IPERF_PORT: u16 = 5201;
/// Number of iperf3 servers: 1 for the foreground and 4 for background programs.
const IPERF_SERVERS: u16 = 5;
const REMOTE_ADDRESS: &str = "198.18.0.2";
const LOCAL_ADDRESS: &str = "198.18.0.1";

const UNDO: &str = r#"
for ns in "$local_ns" "$remote_ns"; do
    ip netns pids "$ns" | xargs -r kill -9
    ip netns delete "$ns"
done
"#;

/// The network, which is removed when the value is dropped.
#[derive(Debug)]
pub struct Network {
    local_ns: String,
    remote_ns: String,
    dir: PathBuf,
    servers: Vec<Child>,
    _keeper: Keeper,
}

impl Network {
    /// Sets up the network with a limit of `rate_mbit` Mbit/s in each direction. The server that
    /// discards data writes its record files to `dir`.
    pub fn start(dir: &Path, rate_mbit: u32, epoch_ns: u64) -> Result<Self> {
        let pid = std::process::id();
        let (local_ns, remote_ns) = (format!("ub{pid}a"), format!("ub{pid}b"));
        let keeper = Keeper::new(&script(
            &[("local_ns", &local_ns), ("remote_ns", &remote_ns)],
            UNDO,
        ))?;
        let mut network = Self {
            local_ns,
            remote_ns,
            dir: dir.to_owned(),
            servers: vec![],
            _keeper: keeper,
        };
        network.cable(rate_mbit)?;
        let epoch = epoch_ns.to_string();
        let listen = format!("{REMOTE_ADDRESS}:{SINK_PORT}");
        let bench = std::env::current_exe()?.display().to_string();
        let dir = dir.display().to_string();
        network.serve(&[
            &bench,
            "load",
            "sink",
            "--listen",
            &listen,
            "--dir",
            &dir,
            "--epoch-ns",
            &epoch,
        ])?;
        network.wait_for_port(SINK_PORT)?;
        Ok(network)
    }

    fn cable(&self, rate_mbit: u32) -> Result<()> {
        let (local_ns, remote_ns) = (self.local_ns.as_str(), self.remote_ns.as_str());
        must(&["ip", "netns", "add", local_ns])?;
        must(&["ip", "netns", "add", remote_ns])?;
        must(&[
            "ip", "link", "add", local_ns, "netns", local_ns, "type", "veth", "peer", "name",
            remote_ns, "netns", remote_ns,
        ])?;
        let rate = format!("{rate_mbit}mbit");
        for (ns, address) in [(local_ns, LOCAL_ADDRESS), (remote_ns, REMOTE_ADDRESS)] {
            let address = format!("{address}/30");
            must(&["ip", "-n", ns, "address", "add", &address, "dev", ns])?;
            must(&["ip", "-n", ns, "link", "set", "lo", "up"])?;
            must(&["ip", "-n", ns, "link", "set", ns, "up"])?;
            must(&[
                "tc", "-n", ns, "qdisc", "add", "dev", ns, "root", "tbf", "rate", &rate, "burst",
                "64kb", "latency", "10ms",
            ])?;
            // The host may use another congestion control. CUBIC is the default of most machines
            // and reduces its rate after packet losses.
            let file = "/proc/sys/net/ipv4/tcp_congestion_control";
            let set = format!("echo cubic >{file} || echo reno >{file} || true");
            must(&["ip", "netns", "exec", ns, "sh", "-c", &set])?;
        }
        Ok(())
    }

    /// Returns a command line that runs `words` in the local namespace, which sends all data.
    pub fn in_local_ns(&self, words: Vec<String>) -> Vec<String> {
        inside(&self.local_ns).into_iter().chain(words).collect()
    }

    /// Address of the server that discards data.
    pub fn sink(&self) -> String {
        format!("{REMOTE_ADDRESS}:{SINK_PORT}")
    }

    /// Path of a record file (`kind`: counter or bins) of the data that arrived on the connection
    /// `name`.
    pub fn arrived(&self, name: &str, kind: &str) -> PathBuf {
        self.dir.join(format!("{name}.{kind}"))
    }

    /// Returns the command line of an iperf3 client in the local namespace. `client` is 0 for the
    /// foreground and the number of the program for background.
    pub fn iperf(&self, client: u16, extent: &[&str]) -> Vec<String> {
        let port = (IPERF_PORT + client).to_string();
        let words = ["iperf3", "-c", REMOTE_ADDRESS, "-p", &port];
        self.in_local_ns(
            words
                .iter()
                .chain(extent)
                .map(|w| (*w).to_owned())
                .collect(),
        )
    }

    /// Returns the command line of `scp` that copies a file to the remote namespace.
    pub fn scp(&self, file: &Path, name: &str) -> Vec<String> {
        let at = |name: &str| self.dir.join(name).display().to_string();
        let to = format!("root@{REMOTE_ADDRESS}:{}", at(name));
        let known = format!("UserKnownHostsFile={}", at("known_hosts"));
        let port = SSH_PORT.to_string();
        let words = [
            "scp",
            "-q",
            "-F",
            "none",
            "-i",
            &at("key"),
            "-P",
            &port,
            "-o",
            &known,
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            &file.display().to_string(),
            &to,
        ]
        .map(str::to_owned);
        self.in_local_ns(words.into())
    }

    /// Starts the iperf3 servers, unless they run.
    pub fn start_iperf(&mut self) -> Result<()> {
        if self.listens(IPERF_PORT) {
            return Ok(());
        }
        for port in IPERF_PORT..IPERF_PORT + IPERF_SERVERS {
            self.serve(&["iperf3", "-s", "-p", &port.to_string()])?;
        }
        (IPERF_PORT..IPERF_PORT + IPERF_SERVERS).try_for_each(|port| self.wait_for_port(port))
    }

    /// Starts sshd with keys and a configuration of its own, unless it runs.
    pub fn start_ssh(&mut self) -> Result<()> {
        if self.listens(SSH_PORT) {
            return Ok(());
        }
        let at = |name: &str| self.dir.join(name).display().to_string();
        for key in ["key", "host-key"] {
            must(&[
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-f",
                &at(key),
            ])?;
        }
        fs::copy(self.dir.join("key.pub"), self.dir.join("authorized"))?;
        fs::create_dir_all("/run/sshd").context("creating the empty directory of sshd")?;
        let config = format!(
            "Port {SSH_PORT}\nListenAddress {REMOTE_ADDRESS}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\nMaxStartups 100\nSubsystem sftp internal-sftp\n",
            at("host-key"),
            at("authorized")
        );
        fs::write(self.dir.join("sshd_config"), config)?;
        self.serve(&["/usr/sbin/sshd", "-D", "-e", "-f", &at("sshd_config")])?;
        self.wait_for_port(SSH_PORT)
    }

    fn serve(&mut self, words: &[&str]) -> Result<()> {
        let all: Vec<String> = inside(&self.remote_ns);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("servers.log"))?;
        let child = Command::new(&all[0])
            .args(&all[1..])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", words[0]))?;
        self.servers.push(child);
        Ok(())
    }

    /// Whether a server listens on the port in the remote namespace.
    fn listens(&self, port: u16) -> bool {
        let filter = format!("( sport = :{port} )");
        let words = inside(&self.remote_ns);
        let output = Command::new(&words[0])
            .args(&words[1..])
            .args(["ss", "-Hltn", &filter])
            .output();
        output.is_ok_and(|o| !o.stdout.is_empty())
    }

    fn wait_for_port(&self, port: u16) -> Result<()> {
        let what = format!(
            "the start of the server on port {port} (its log is {}/servers.log)",
            self.dir.display()
        );
        wait_for(&what, Duration::from_secs(10), || self.listens(port))?;
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Returns the beginning of a command line that runs a program in a network namespace. `ip netns
/// exec` would also create a mount namespace.
fn inside(ns: &str) -> Vec<String> {
    vec![
        "nsenter".to_owned(),
        format!("--net=/run/netns/{ns}"),
        "--".to_owned(),
    ]
}

/// Deletes the namespaces of benchmark processes that no longer exist.
pub fn sweep() {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let digits = name
            .strip_prefix("ub")
            .map(|rest| rest.trim_end_matches(['a', 'b']));
        let owner = digits.and_then(|digits| digits.parse::<i32>().ok());
        if owner.is_some_and(|pid| !crate::processes::runs(pid)) {
            // If a namespace cannot be deleted, the set-up of a network with the same name reports
            // the error.
            let _ = must(&["ip", "netns", "delete", &name]);
        }
    }
}
