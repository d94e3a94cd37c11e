//! Manual pages and completions, generated from the definition of a command line.
//!
//! Owns: how the text behind the options becomes sections, terms and examples. Left out: which pages
//! there are (`pages`, `lab_main`).

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use shoal_devices::{During, Outcome};

/// Writes a page for each of these commands, named `PROGRAM-COMMAND`. Hidden commands get none.
pub fn write_pages<'a>(directory: &Path, program: &str, commands: impl Iterator<Item = &'a Command>) -> Outcome<()> {
    fs::create_dir_all(directory).during(directory.display())?;
    for command in commands.filter(|command| !command.is_hide_set()) {
        let name: &'static str = format!("{program}-{}", command.get_name()).leak();
        write_page(directory, command.clone().name(name), "1")?;
    }
    Ok(())
}

pub fn write_page(directory: &Path, command: Command, section: &str) -> Outcome<()> {
    let path = directory.join(format!("{}.{section}", command.get_name()));
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.has_subcommands();
    let has_version = command.get_version().is_some();
    let man = Man::new(command).section(section).source("Shoal").manual("Shoal");
    let mut page = Vec::new();
    // The generator's own version of this section would fill tables and examples like prose.
    let rendered = man
        .render_title(&mut page)
        .and_then(|()| man.render_name_section(&mut page))
        .and_then(|()| man.render_synopsis_section(&mut page))
        .and_then(|()| man.render_description_section(&mut page))
        .and_then(|()| man.render_options_section(&mut page))
        .and_then(|()| if has_commands { man.render_subcommands_section(&mut page) } else { Ok(()) })
        .and_then(|()| page.write_all(notes(&after).as_bytes()))
        .and_then(|()| if has_version { man.render_version_section(&mut page) } else { Ok(()) });
    rendered.and_then(|()| fs::write(&path, &page)).during(path.display())
}

/// Formats the text that follows the options as sections of a page. A line that ends with a colon
/// before indented lines is a section heading. An indented line with a gap of blanks is a term and
/// its meaning, which continues in lines that are indented further. Other indented lines stay
/// unchanged. Everything else is prose.
fn notes(text: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (mut out, mut lines) = (String::new(), text.lines().peekable());
    // Prose gets a section of its own; examples get a block that is not filled.
    let (mut in_notes, mut in_paragraph, mut in_examples) = (false, false, false);
    while let Some(line) = lines.next() {
        let (depth, line) = (indent(line), line.trim());
        let next = lines.peek().map_or(0, |next| indent(next));
        let (term, meaning) = line.split_once("  ").unwrap_or((line, ""));
        let is_example = depth == 2 && meaning.is_empty() && next <= 2;
        if in_examples && !is_example {
            out += ".fi\n.RE\n";
        } else if is_example && !in_examples {
            out += ".PP\n.RS 4\n.nf\n";
        }
        in_examples = is_example;
        match (depth, line.strip_suffix(':')) {
            (0, Some(title)) if next > 0 => {
                out += &format!(".SH \"{}\"\n", escaped(&title.to_uppercase()));
                in_notes = false;
            }
            (0, _) if line.is_empty() => in_paragraph = false,
            (0, _) => {
                out += match (in_notes, in_paragraph) {
                    (true, true) => "",
                    (true, false) => ".PP\n",
                    (false, _) => ".SH \"NOTES\"\n",
                };
                out += &format!("{}\n", escaped(line));
                (in_notes, in_paragraph) = (true, true);
            }
            (2, _) if !is_example => {
                out += &format!(".TP\n\\fB{}\\fR\n", escaped(term));
                out += &(escaped(meaning.trim()) + if meaning.is_empty() { "" } else { "\n" });
            }
            _ => out += &format!("{}\n", escaped(line)),
        }
    }
    out + if in_examples { ".fi\n.RE\n" } else { "" }
}

/// Escapes text so that the formatter sees no command in it.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// Prints the completions of `command` for a shell.
pub fn print_completions(shell: clap_complete::Shell, mut command: Command) -> Outcome<()> {
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    clap_complete::generate(shell, &mut command, name, &mut script);
    io::stdout().write_all(&script).during("standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_sections_with_terms_and_examples() {
        let notes = notes("Examples:\n  a -b\n  c\n\nMore is\nto be said.\n\nAnd:\n  x  one\n     two\n\n.so\n\nEnd\n");
        let wanted = ".SH \"EXAMPLES\"\n.PP\n.RS 4\n.nf\na \\-b\nc\n.fi\n.RE\n.SH \"NOTES\"\nMore is\nto be said.\n\
                      .SH \"AND\"\n.TP\n\\fBx\\fR\none\ntwo\n.SH \"NOTES\"\n\\&.so\n.PP\nEnd\n";
        assert_eq!(notes, wanted);
    }
}
