#!/usr/bin/env bash
# Makes the environments in which tools/bench peers runs what it compares with, one for each family:
#   tools/bench/peers/make_environments.sh FOLDER [transformers openvino llamacpp]
# Versions are those of environments/FAMILY.txt. A family that cannot be installed is named; the others stay.
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?usage: make_environments.sh FOLDER [FAMILY...]}
shift
families=("$@")
((${#families[@]})) || families=(transformers openvino llamacpp)
code=0
for family in "${families[@]}"; do
  requirements=$here/environments/$family.txt
  [[ -f $requirements ]] || { echo "no family $family: allowed are $(cd "$here/environments" && echo *.txt)" >&2; exit 2; }
  if "${PYTHON:-python3}" -m venv "$folder/$family" && "$folder/$family/bin/pip" install -q -r "$requirements"; then
    # Comes along for models of images; of another build than torch it ends every export.
    "$folder/$family/bin/pip" uninstall -q -y torchvision
    echo "$family: $folder/$family"
  else
    echo "$family: not installed" >&2
    code=1
  fi
done
exit $code
