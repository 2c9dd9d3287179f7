// SPDX-License-Identifier: MIT OR Apache-2.0
//! The elements of an XML document, with their attributes and lines. Text between elements,
//! comments, instructions and the document type are skipped. The five predefined entities and
//! character references are resolved. An element may be at most [`DEPTH_MAX`] elements deep.

use crate::error::quoted;
use std::borrow::Cow;

/// Maximum depth of an element; hwloc's files have about 20.
const DEPTH_MAX: usize = 1_000;

/// An element with its parent.
#[derive(Debug)]
pub(super) struct Element {
    pub name: String,
    /// Index of the parent in the list of elements; the first element is its own parent.
    pub parent: usize,
    /// Line of the element in the file, from 1.
    pub line: usize,
    attributes: Vec<(String, String)>,
}

impl Element {
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Returns the elements of the document in their order.
///
/// # Errors
/// Returns the first fault with its line.
pub(super) fn read(text: &str) -> Result<Vec<Element>, String> {
    let mut reader = Reader {
        text: text.strip_prefix('\u{feff}').unwrap_or(text),
        position: 0,
        line: 1,
        elements: Vec::new(),
        open: Vec::new(),
    };
    reader.read()?;
    Ok(reader.elements)
}

struct Reader<'a> {
    text: &'a str,
    position: usize,
    line: usize,
    elements: Vec<Element>,
    /// Indices of the open elements, from the first element on.
    open: Vec<usize>,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    fn fault(&self, reason: &str) -> String {
        format!(
            "line {}: the file is not a valid XML file: {reason}",
            self.line
        )
    }

    /// Moves forward and counts the lines.
    fn skip(&mut self, bytes: usize) -> &'a str {
        let passed = &self.rest()[..bytes];
        self.line += passed.bytes().filter(|&b| b == b'\n').count();
        self.position += bytes;
        passed
    }

    /// Moves behind `end`.
    fn skip_behind(&mut self, end: &str, what: &str) -> Result<&'a str, String> {
        match self.rest().find(end) {
            Some(at) => {
                let passed = self.skip(at);
                self.skip(end.len());
                Ok(passed)
            }
            None => Err(self.fault(&format!("{what} is not closed"))),
        }
    }

    fn skip_spaces(&mut self) {
        let rest = self.rest();
        self.skip(rest.len() - rest.trim_start().len());
    }

    fn name(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| c.is_whitespace() || "<>/='\"!?&".contains(c));
        self.skip(end.unwrap_or(rest.len()))
    }

    fn read(&mut self) -> Result<(), String> {
        while let Some(at) = self.rest().find('<') {
            self.skip(at);
            let rest = self.rest();
            if rest.starts_with("<!--") {
                self.skip_behind("-->", "a comment")?;
            } else if rest.starts_with("<![CDATA[") {
                self.skip_behind("]]>", "a section of text")?;
            } else if rest.starts_with("<?") {
                self.skip_behind("?>", "an instruction")?;
            } else if rest.starts_with("<!") {
                let passed = self.skip_behind(">", "the document type")?;
                if passed.contains('[') {
                    return Err(self.fault("declarations inside the document type (<!DOCTYPE ... [...]>) are not supported"));
                }
            } else if rest.starts_with("</") {
                self.end()?;
            } else {
                self.start()?;
            }
        }
        match self.open.last() {
            Some(&open) => {
                let element = &self.elements[open];
                Err(format!(
                    "line {}: the file is incomplete: the element '{}' is not closed",
                    element.line,
                    quoted(&element.name)
                ))
            }
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), String> {
        self.skip(2);
        let name = self.name();
        self.skip_spaces();
        let matches = self
            .open
            .last()
            .is_some_and(|&open| self.elements[open].name == name);
        if !matches || !self.rest().starts_with('>') {
            return Err(self.fault("the end of an element does not match its start"));
        }
        self.skip(1);
        self.open.pop();
        Ok(())
    }

    fn start(&mut self) -> Result<(), String> {
        self.skip(1);
        let line = self.line;
        let name = self.name();
        if name.is_empty() {
            return Err(self.fault("an element has no name"));
        }
        if self.open.is_empty() && !self.elements.is_empty() {
            return Err(self.fault("a second element follows the first element"));
        }
        let mut attributes = Vec::new();
        loop {
            self.skip_spaces();
            let rest = self.rest();
            if rest.starts_with("/>") || rest.starts_with('>') {
                break;
            }
            attributes.push(self.attribute()?);
        }
        let index = self.elements.len();
        self.elements.push(Element {
            name: name.to_owned(),
            parent: self.open.last().copied().unwrap_or(0),
            line,
            attributes,
        });
        match self.rest().starts_with("/>") {
            true => drop(self.skip(2)),
            false => {
                self.skip(1);
                self.open.push(index);
                if self.open.len() > DEPTH_MAX {
                    return Err(self.fault("the elements are nested too deeply"));
                }
            }
        }
        Ok(())
    }

    fn attribute(&mut self) -> Result<(String, String), String> {
        let name = self.name();
        self.skip_spaces();
        if name.is_empty() || !self.rest().starts_with('=') {
            return Err(self.fault("an attribute has no name or no value"));
        }
        self.skip(1);
        self.skip_spaces();
        let quote = match self.rest().chars().next() {
            Some(quote @ ('"' | '\'')) => quote,
            _ => return Err(self.fault("the value of an attribute is not quoted")),
        };
        self.skip(1);
        let value =
            self.skip_behind(quote.encode_utf8(&mut [0; 4]), "the value of an attribute")?;
        match resolved(value) {
            Some(value) => Ok((name.to_owned(), value.into_owned())),
            None => Err(self.fault("an attribute contains an unknown entity")),
        }
    }
}

/// The value with its entities resolved; `None` for an unknown entity.
fn resolved(value: &str) -> Option<Cow<'_, str>> {
    if !value.contains('&') {
        return Some(Cow::Borrowed(value));
    }
    let mut text = String::new();
    let mut parts = value.split('&');
    text.push_str(parts.next()?);
    for part in parts {
        let (entity, rest) = part.split_once(';')?;
        text.push(match entity {
            "lt" => '<',
            "gt" => '>',
            "amp" => '&',
            "quot" => '"',
            "apos" => '\'',
            other => {
                let number = other.strip_prefix('#')?;
                let code = match number.strip_prefix(['x', 'X']) {
                    Some(hex) => u32::from_str_radix(hex, 16),
                    None => number.parse(),
                };
                char::from_u32(code.ok()?)?
            }
        });
        text.push_str(rest);
    }
    Some(Cow::Owned(text))
}
