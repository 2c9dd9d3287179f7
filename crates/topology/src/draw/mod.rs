// SPDX-License-Identifier: MIT OR Apache-2.0
//! The drawing of a machine as text.
//!
//! 1. A machine is drawn core by core if this drawing has at most 56 lines: a frame for every
//!    package contains a frame for each of its domains, which contains a column for each core, with
//!    the core's hardware threads below one another.
//! 2. A larger machine is *folded*: adjacent equal domains are described once, and each domain is
//!    listed with its number and its CPUs.
//!
//! Both forms show the die and the NUMA nodes of each domain. The die and the nodes are in the
//! title of the package if they are equal for all its domains, and in the title of each domain if
//! no two domains share them. Otherwise they are on a line above the domains that share them. The
//! width is at least 40 columns; a single longer word may exceed the width. The number of lines of
//! the folded form is not limited.

mod canvas;
mod domain;
mod place;
mod seats;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{CpuId, CpuSet, DomainId, NodeId, PackageId, Topology};

use crate::error::escaped;
use canvas::{ASCII, Block, Glyphs, Line, Style, UNICODE, flow, wrap};
use domain::MachineProperties;
use place::{DomainLocation, LocationGroup, each_domain, each_its_own};
use seats::Seats;

/// Options of a drawing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawOptions {
    /// Maximum number of columns; at least 40 are used.
    pub width: usize,
    /// Whether to use ANSI colours.
    pub colour: bool,
    /// Whether to use box-drawing characters; plain ASCII otherwise.
    pub unicode: bool,
    /// The name of the program on each CPU. The drawing shows a letter for the program beside the
    /// CPU, and a legend below the machine. Empty: only the machine is drawn.
    pub seats: BTreeMap<CpuId, String>,
    /// CPUs that are offline; listed below the machine.
    pub offline: CpuSet,
    /// CPUs of the machine that no plan may use; listed below the machine.
    pub disallowed: CpuSet,
}

impl Default for DrawOptions {
    /// 80 columns, box-drawing characters, no colours, no programs.
    fn default() -> Self {
        Self {
            width: 80,
            colour: false,
            unicode: true,
            seats: BTreeMap::new(),
            offline: CpuSet::new(),
            disallowed: CpuSet::new(),
        }
    }
}

/// Minimum width of a drawing.
const WIDTH_MIN: usize = 40;
/// Maximum number of lines of a drawing core by core.
const LINES_MAX: usize = 56;
/// Number of columns that the two sides of a package's frame take.
const FRAME: usize = 4;

/// Draws the machine; every line ends with a line feed.
///
/// The topology must pass [`Topology::check`].
pub fn draw(topology: &Topology, options: &DrawOptions) -> String {
    let painter = Painter {
        topology,
        properties: MachineProperties::of(topology),
        seats: Seats::new(&options.seats),
        offline: &options.offline,
        disallowed: &options.disallowed,
        glyphs: if options.unicode { UNICODE } else { ASCII },
        width: options.width.max(WIDTH_MIN),
    };
    let mut picture = painter.heading();
    let whole = painter.whole();
    match whole.0.len() <= LINES_MAX {
        true => picture.below(whole),
        false => picture.below(painter.folded()),
    }
    picture.below(painter.footing());
    picture.render(options.colour)
}

struct Painter<'a> {
    topology: &'a Topology,
    properties: MachineProperties,
    seats: Seats,
    offline: &'a CpuSet,
    disallowed: &'a CpuSet,
    glyphs: Glyphs,
    width: usize,
}

impl Painter<'_> {
    /// The machine's name and its description in one sentence.
    fn heading(&self) -> Block {
        let name = Line::new(Style::Strong, escaped(&self.topology.name));
        let mut block = Block(vec![name.cut(self.width, self.glyphs.more)]);
        let headline = words::headline(self.topology);
        let lines = wrap(&headline, ',', self.width).into_iter();
        block
            .0
            .extend(lines.map(|line| Line::new(Style::Plain, line)));
        block.0.push(Line::default());
        block
    }

    /// The lines below the machine: NUMA nodes that are local to no drawn domain, CPUs that need a
    /// note, and the legend.
    fn footing(&self) -> Block {
        let mut block = Block::default();
        let shown: BTreeSet<NodeId> = (self.topology.domains.iter())
            .flat_map(|domain| domain.nodes.iter().copied())
            .collect();
        let apart: Vec<NodeId> = (0..self.topology.nodes.len())
            .filter(|node| !shown.contains(node))
            .collect();
        if !apart.is_empty() {
            let nodes = words::nodes(self.topology, &apart);
            block.below(paragraph(
                &format!("NUMA nodes without usable CPUs: {nodes}"),
                self.width,
            ));
        }
        for (what, cpus) in [
            ("CPUs without a NUMA node", self.cpus_without_node()),
            ("offline CPUs", self.offline.clone()),
            (
                "CPUs outside of the cgroup, not used",
                self.disallowed.clone(),
            ),
        ] {
            if !cpus.is_empty() {
                block.below(paragraph(&format!("{what}: {cpus}"), self.width));
            }
        }
        if self.properties.is_hybrid {
            block.below(self.hint("capacity: speed of a core relative to the fastest core"));
        }
        block.below(self.seats.legend(self.topology));
        block
    }

    /// An explanation of the drawing.
    fn hint(&self, text: &str) -> Block {
        let lines = wrap(text, ' ', self.width).into_iter();
        Block(lines.map(|line| Line::new(Style::Faint, line)).collect())
    }

    /// The CPUs that no NUMA node owns, on a machine with NUMA nodes.
    fn cpus_without_node(&self) -> CpuSet {
        let nodes = &self.topology.nodes;
        let near = nodes
            .iter()
            .fold(CpuSet::new(), |set, node| set.or(&node.cpus));
        match nodes.is_empty() {
            true => near,
            false => self.topology.all_cpus().minus(&near),
        }
    }

    /// Draws the machine core by core.
    fn whole(&self) -> Block {
        let inner = self.width - FRAME;
        let box_width = self.box_width(inner);
        let draw = |package| self.package(package, |sites| self.boxes(sites, inner, box_width));
        let contents: Vec<(Line, Block)> = (0..self.topology.packages.len()).map(draw).collect();
        let inside = |(title, content): &(Line, Block)| content.width().max(title.width() + 2);
        let widest = contents.iter().map(inside).max().unwrap_or(0);
        let frame_width = (widest + FRAME).min(self.width);
        let frames = contents
            .into_iter()
            .map(|(title, content)| content.framed(title, frame_width, self.width, &self.glyphs))
            .collect();
        let mut block = flow(frames, self.width, 1);
        if self.topology.cores.iter().any(|core| core.cpus.len() > 1) {
            block.below(self.hint(
                "each column is one core; the hardware threads of a core are below one another",
            ));
        }
        block
    }

    /// Draws the folded machine: equal domains are described once, and adjacent equal packages with
    /// one domain share a frame.
    fn folded(&self) -> Block {
        let inner = self.width - FRAME;
        let packages: Vec<PackageId> = (0..self.topology.packages.len()).collect();
        let mut block = Block::default();
        for run in packages.chunk_by(|&a, &b| self.alike(a, b)) {
            let (title, content) = match run {
                [package] => self.package(*package, |sites| self.runs(sites, inner)),
                _ => self.packages(run, inner),
            };
            block.below(content.framed(title, self.width, self.width, &self.glyphs));
        }
        block
    }

    /// Returns whether each of the two packages has a single domain, and their descriptions are
    /// equal.
    fn alike(&self, a: PackageId, b: PackageId) -> bool {
        let drawn = |id: PackageId| {
            let package = &self.topology.packages[id];
            match package.domains[..] {
                [domain] => Some((
                    package.model.clone(),
                    domain::shape(self.topology, domain, self.properties),
                )),
                _ => None,
            }
        };
        drawn(a).is_some() && drawn(a) == drawn(b)
    }

    /// Draws equal packages with one domain each: their domains, grouped by NUMA node. Packages and
    /// domains have the same order.
    fn packages(&self, run: &[PackageId], width: usize) -> (Line, Block) {
        let topology = self.topology;
        let numbers: CpuSet = run.iter().map(|&id| id as CpuId).collect();
        let mut title = Line::new(Style::Strong, format!("packages {numbers}"));
        let model = run
            .first()
            .and_then(|&id| topology.packages[id].model.as_deref().map(escaped));
        for fact in ["one domain in each package".to_owned()]
            .into_iter()
            .chain(model)
        {
            title.push(Style::Plain, format!("{}{fact}", self.glyphs.dot));
        }
        let domains = run.iter().flat_map(|&id| &topology.packages[id].domains);
        let mut sites: Vec<LocationGroup> = Vec::new();
        for &id in domains {
            let nodes = match topology.nodes.len() {
                1 => Vec::new(),
                _ => topology.domains[id].nodes.clone(),
            };
            LocationGroup::add(&mut sites, DomainLocation { die: None, nodes }, id);
        }
        (title, self.runs(&sites, width))
    }

    /// A package's title, and its domains as drawn by `show`.
    fn package(&self, id: PackageId, show: impl Fn(&[LocationGroup]) -> Block) -> (Line, Block) {
        let package = &self.topology.packages[id];
        let cores = package
            .domains
            .iter()
            .map(|&domain| self.topology.domains[domain].cores.len())
            .sum();
        let (common, sites) = self.sites(id);
        let facts = (package.model.as_deref().map(escaped).into_iter())
            .chain([words::count(cores, "core")]);
        let mut title = Line::new(Style::Strong, format!("package {id}"));
        for fact in facts {
            title.push(Style::Plain, format!("{}{fact}", self.glyphs.dot));
        }
        let mut content = Block::default();
        if let Some(place) = self.place(&common) {
            let fact = format!("{}{place}", self.glyphs.dot);
            // A place that the title has no room for is on lines of its own.
            match title.width() + fact.chars().count() + FRAME + 2 <= self.width {
                true => title.push(Style::Plain, fact),
                false => content.below(paragraph(&place, self.width - FRAME)),
            }
        }
        content.below(show(&sites));
        (title, content)
    }

    /// The common location of all domains of the package, and the domains grouped by location.
    fn sites(&self, package: PackageId) -> (DomainLocation, Vec<LocationGroup>) {
        let package = &self.topology.packages[package];
        let domains = || package.domains.iter().map(|&id| &self.topology.domains[id]);
        // On a machine with one node, the heading contains the node.
        let some_nodes = self.topology.nodes.len() > 1;
        let mut all_nodes = domains().map(|domain| &domain.nodes);
        let nodes = all_nodes.next().cloned().unwrap_or_default();
        let one_place = all_nodes.all(|other| *other == nodes);
        let common = DomainLocation {
            die: None,
            nodes: if one_place && some_nodes {
                nodes
            } else {
                Vec::new()
            },
        };
        let mut sites: Vec<LocationGroup> = Vec::new();
        for (&id, domain) in package.domains.iter().zip(domains()) {
            let die = package
                .dies
                .iter()
                .position(|die| domain.cpus.is_subset(die));
            let place = DomainLocation {
                die: die.filter(|_| package.dies.len() > 1),
                nodes: if one_place {
                    Vec::new()
                } else {
                    domain.nodes.clone()
                },
            };
            LocationGroup::add(&mut sites, place, id);
        }
        (common, sites)
    }

    /// Returns a location such as `die 1 · node 3, 16 GiB`; `None` if there is nothing to display.
    fn place(&self, place: &DomainLocation) -> Option<String> {
        let die = place.die.map(|die| format!("die {die}"));
        let nodes = (!place.nodes.is_empty()).then(|| words::nodes(self.topology, &place.nodes));
        let facts: Vec<String> = die.into_iter().chain(nodes).collect();
        (!facts.is_empty()).then(|| facts.join(self.glyphs.dot))
    }

    /// Draws a frame for every domain, side by side within the width.
    fn boxes(&self, sites: &[LocationGroup], width: usize, box_width: usize) -> Block {
        let own = each_its_own(sites);
        let frame = |(site, id): (&LocationGroup, DomainId)| {
            let title = self.box_title(site, id, own);
            let cells = domain::cells(self.topology, id, &self.seats, width - FRAME);
            cells.framed(title, box_width, width, &self.glyphs)
        };
        if own {
            return flow(each_domain(sites).map(frame).collect(), width, 1);
        }
        let mut block = Block::default();
        for site in sites {
            let one = std::slice::from_ref(site);
            block.below(self.headed(site, flow(each_domain(one).map(frame).collect(), width, 1)));
        }
        block
    }

    /// Returns a title such as `domain 3 · L3 32 MiB`, with the location if each domain has a
    /// location of its own.
    fn box_title(&self, site: &LocationGroup, id: DomainId, own: bool) -> Line {
        let mut title = domain::title(self.topology, id, self.properties, self.glyphs.dot);
        if let Some(place) = self.place(&site.place).filter(|_| own) {
            title.push(Style::Plain, format!("{}{place}", self.glyphs.dot));
        }
        title
    }

    /// Returns the width of the widest domain's frame, used for all frames; 0 if the widths differ
    /// too much.
    fn box_width(&self, width: usize) -> usize {
        let mut widths = Vec::new();
        for package in 0..self.topology.packages.len() {
            let (_, sites) = self.sites(package);
            let own = each_its_own(&sites);
            for (site, id) in each_domain(&sites) {
                let title = self.box_title(site, id, own).width() + 2;
                let cells = domain::cells(self.topology, id, &self.seats, width - FRAME).width();
                widths.push((title.max(cells) + FRAME).min(width));
            }
        }
        let least = widths.iter().copied().min().unwrap_or(0);
        let most = widths.iter().copied().max().unwrap_or(0);
        let beside = |box_width: usize| (width + 1) / (box_width + 1);
        let alike = most * 3 <= least * 4 && beside(most) == beside(least);
        if alike { most } else { 0 }
    }

    /// Draws each run of adjacent equal domains: their common description, then the number and the
    /// CPUs of each domain.
    fn runs(&self, sites: &[LocationGroup], width: usize) -> Block {
        let shape = |id: &DomainId| domain::shape(self.topology, *id, self.properties);
        let domains: Vec<DomainId> = each_domain(sites).map(|(_, id)| id).collect();
        if each_its_own(sites) {
            return self.single_runs(sites, width);
        }
        let mut block = Block::default();
        if domains.iter().all(|id| shape(id) == shape(&domains[0])) {
            block.below(self.heading_of_run(domains.len(), &shape(&domains[0]), width));
            block.below(self.rows(sites, width));
            return block;
        }
        for site in sites {
            let mut runs = Block::default();
            for run in site.domains.chunk_by(|a, b| shape(a) == shape(b)) {
                runs.below(self.heading_of_run(run.len(), &shape(&run[0]), width));
                runs.below(self.table(run.iter().map(|&id| (id, String::new())).collect(), width));
            }
            block.below(self.headed(site, runs));
        }
        block
    }

    /// Draws runs of equal domains if each domain has a location of its own.
    fn single_runs(&self, sites: &[LocationGroup], width: usize) -> Block {
        let shape = |(site, id): &(&LocationGroup, DomainId)| {
            let bytes: u64 = (site.place.nodes.iter())
                .map(|&node| self.topology.nodes[node].bytes)
                .sum();
            let memory = match bytes {
                0 => String::new(),
                bytes => format!(", memory {}", words::size(bytes)),
            };
            domain::shape(self.topology, *id, self.properties) + &memory
        };
        let domains: Vec<(&LocationGroup, DomainId)> = each_domain(sites).collect();
        let mut block = Block::default();
        for run in domains.chunk_by(|a, b| shape(a) == shape(b)) {
            block.below(self.heading_of_run(run.len(), &shape(&run[0]), width));
            let entries = run
                .iter()
                .map(|&(site, id)| (id, self.numbers(&site.place)));
            block.below(self.table(entries.collect(), width));
        }
        block
    }

    /// Returns the description of a run, such as `8 × domain: 8 cores, SMT 2, L3 32 MiB, CPUs`.
    fn heading_of_run(&self, domains: usize, shape: &str, width: usize) -> Block {
        let text = match domains {
            1 => format!("domain: {shape}, CPUs"),
            many => format!("{many} {} domain: {shape}, CPUs", self.glyphs.times),
        };
        paragraph(&text, width)
    }

    /// Draws one location per row, with the domains of the location beside it.
    fn rows(&self, sites: &[LocationGroup], width: usize) -> Block {
        let places: Vec<String> = (sites.iter())
            .map(|site| self.place(&site.place).unwrap_or_default())
            .collect();
        let label = places.iter().map(|p| p.chars().count()).max().unwrap_or(0);
        let entries = |site: &LocationGroup| {
            let plain = site.domains.iter().map(|&id| (id, String::new()));
            plain.collect::<Vec<_>>()
        };
        let widest = (sites.iter())
            .map(|site| self.table(entries(site), 1).width())
            .max()
            .unwrap_or(0);
        if label + widest > width {
            let mut block = Block::default();
            for site in sites {
                block.below(self.headed(site, self.table(entries(site), width)));
            }
            return block;
        }
        let row = |(site, place): (&LocationGroup, String)| {
            let place = Block(vec![Line::new(Style::Plain, place)]).widened(label);
            let table = self.aligned_table(entries(site), width - label, widest);
            flow(vec![place, table], width, 0)
        };
        let rows: Vec<Block> = sites.iter().zip(places).map(row).collect();
        let row_width = rows.iter().map(Block::width).max().unwrap_or(0);
        let rows = rows.into_iter().map(|row| row.widened(row_width));
        flow(rows.collect(), width, 2)
    }

    /// Draws the block below its location, if there is a location to display.
    fn headed(&self, site: &LocationGroup, block: Block) -> Block {
        let Some(place) = self.place(&site.place) else {
            return block;
        };
        let mut headed = paragraph(&place, self.width - FRAME);
        headed.below(block);
        headed
    }

    /// Returns the numbers of die and nodes, such as ` (die 1, node 3)`.
    fn numbers(&self, place: &DomainLocation) -> String {
        let die = place.die.map(|die| format!("die {die}"));
        let nodes: CpuSet = (place.nodes.iter())
            .map(|&node| self.topology.nodes[node].os)
            .collect();
        let nodes = (!nodes.is_empty()).then(|| format!("node {nodes}"));
        let facts: Vec<String> = die.into_iter().chain(nodes).collect();
        match facts.is_empty() {
            true => String::new(),
            false => format!(" ({})", facts.join(", ")),
        }
    }

    /// Draws domain numbers with the CPUs of the domains, in columns within the width.
    fn table(&self, entries: Vec<(DomainId, String)>, width: usize) -> Block {
        self.aligned_table(entries, width, 0)
    }

    /// Draws the same as `table`, with a minimum width of the columns.
    fn aligned_table(
        &self,
        entries: Vec<(DomainId, String)>,
        width: usize,
        column_min: usize,
    ) -> Block {
        let last = self.topology.domains.len().saturating_sub(1);
        let digits = last.to_string().len();
        let blocks: Vec<Block> = entries
            .into_iter()
            .map(|(id, place)| {
                let lead = format!("  {id:>digits$}{place}: ");
                let list = domain::cpu_list(self.topology, id, &self.seats);
                listed(&lead, list, width)
            })
            .collect();
        let widest = blocks.iter().map(Block::width).max().unwrap_or(0);
        let column = widest.max(column_min);
        let aligned = blocks.into_iter().map(|block| block.widened(column));
        flow(aligned.collect(), width, 0)
    }
}

/// Text, wrapped to the width.
fn paragraph(text: &str, width: usize) -> Block {
    let lines = wrap(text, ' ', width).into_iter();
    Block(lines.map(|line| Line::new(Style::Plain, line)).collect())
}

/// Draws the text `lead` followed by lists of CPUs, which continue on further lines if they exceed
/// the width.
fn listed(lead: &str, lists: Vec<(Style, String)>, width: usize) -> Block {
    let room = width.saturating_sub(lead.len() + 1);
    let mut block = Block::default();
    let mut line = Line::new(Style::Strong, lead);
    let mut used = 0;
    for (style, list) in lists {
        for piece in wrap(&list, ',', room) {
            if used > 0 && used + piece.len() > room {
                block.0.push(std::mem::take(&mut line));
                line.push(Style::Plain, " ".repeat(lead.len()));
                used = 0;
            }
            used += piece.len() + 1;
            line.push(style, piece + " ");
        }
    }
    block.0.push(line);
    block
}
