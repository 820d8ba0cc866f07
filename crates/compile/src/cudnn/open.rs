//! The compiler of a planner, opened by the first plan of cuDNN that must be compiled.

use std::sync::OnceLock;

use qkvault_sys::Search;

use crate::cudnn::compiler::Compiler;

/// A compiler that is opened when it is needed.
#[derive(Debug)]
pub(crate) struct OpenCompiler {
    search: Option<Search>,
    opened: OnceLock<Compiler>,
}

impl OpenCompiler {
    /// This one, or none.
    pub(crate) fn new(compiler: Option<Compiler>) -> OpenCompiler {
        OpenCompiler { search: None, opened: compiler.map_or_else(OnceLock::new, OnceLock::from) }
    }

    /// The one that a search finds.
    pub(crate) fn by(search: Search) -> OpenCompiler {
        OpenCompiler { search: Some(search), opened: OnceLock::new() }
    }

    /// The compiler, if it is open.
    pub(crate) fn opened(&self) -> Option<&Compiler> {
        self.opened.get()
    }

    /// The compiler, or why there is none; empty if nobody gave one.
    pub(crate) fn get(&self) -> Result<&Compiler, String> {
        match (self.opened.get(), &self.search) {
            (Some(compiler), _) => Ok(compiler),
            (None, None) => Err(String::new()),
            (None, Some(search)) => {
                let compiler = Compiler::open(search).map_err(|error| error.to_string())?;
                Ok(self.opened.get_or_init(|| compiler))
            }
        }
    }
}
