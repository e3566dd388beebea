@echo off
rem Finds a Python that can run launcher\, which does the rest (launcher\README.md describes the order).
rem   start-ui.bat            opens the window
rem   start-ui.bat test ...   runs the tests
rem   start-ui.bat VERB ...   python -m trainer VERB ...; benchmark and make-demo-model: their own packages
setlocal DisableDelayedExpansion
set "DARKROOM_CALLER_DIR=%CD%"
cd /d "%~dp0"
set "PYTHONHOME="
set "PYTHONSAFEPATH="
set "PYTHONSTARTUP="
set "FITS=import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))"

if defined VIRTUAL_ENV call :try "%VIRTUAL_ENV%\Scripts\python.exe" && goto found
if defined CONDA_PREFIX call :try "%CONDA_PREFIX%\python.exe" && goto found
if not exist ".venv\.darkroom-unfinished" call :try ".venv\Scripts\python.exe" && goto found
call :try py -3 && goto found
call :try py -3.14 && goto found
call :try py -3.13 && goto found
call :try py -3.12 && goto found
call :try py -3.11 && goto found
call :try python && goto found
call :try ".venv\Scripts\python.exe" && goto found
echo Darkroom needs Python 3.11 to 3.14, but none was found; install it with: winget install Python.Python.3.12
if "%~1"=="" pause
exit /b 1

:found
%PYTHON_COMMAND% -s -m launcher %*
set "RESULT=%ERRORLEVEL%"
if not "%RESULT%"=="0" if "%~1"=="" pause
exit /b %RESULT%

:try
set PYTHON_COMMAND=%*
%* -I -S -c "%FITS%" >nul 2>nul
exit /b %ERRORLEVEL%
